/* Accessibility: keyboard shortcuts (listed under `?`), tab headings and labels that Gradio's own
   components lack. */
import { button, h } from "./dom.js";
import { nameOfOpenTab } from "./navigation.js";
import { originalText } from "./translations.js";

const KEYS = [
  ["Ctrl + Enter", "Start training (Train tab) or speak (Listen tab)"],
  ["S", "Live: generate a preview now"],
  ["L", "Live: toggle the log scale"],
  ["+ -", "Live: change the smoothing"],
  ["\u2190 \u2192", "Live: move along the focused chart"],
  ["Esc", "Live: reset the zoom"],
  ["?", "Show this list"],
];
/** @type {Record<string, string>} */
const STARTS = { train: "#start-training", listen: "#speak-now" };
/** @type {Record<string, () => boolean>} */
const LIVE = {
  s: () => press("#live-preview"), l: () => press("#live .toolbar input[type=checkbox]"),
  "+": () => changeSmoothing(0.05), "=": () => changeSmoothing(0.05), "-": () => changeSmoothing(-0.05),
  escape: () => press("#live-show-all"),
};
// A letter typed into one of these is not a shortcut. The button of a closed dialog keeps the focus until
// the next frame, which takes long on a busy machine, so only an open one counts.
const TYPED = "textarea, select, dialog[open], input:not([type=checkbox]):not([type=radio]):not([type=range])";
const REPAIR_MS = 250;
/** @type {HTMLDialogElement | null} */
let help = null;
/** @type {ReturnType<typeof setTimeout> | null} */
let waiting = null;

/** Listen for shortcuts, and repair what Gradio builds. */
export function startAccess() {
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.metaKey || event.defaultPrevented) return;
    if (answers(event)) event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    if (event.target instanceof Element && event.target.id === "show-keys") showKeys();
  });
  new MutationObserver(() => { waiting = waiting || setTimeout(repair, REPAIR_MS); })
    .observe(document.documentElement, { subtree: true, childList: true });
}

/** Whether a key is a shortcut that did something. @param {KeyboardEvent} event */
function answers(event) {
  const tab = nameOfOpenTab();
  if (event.ctrlKey) return event.key === "Enter" && tab in STARTS && press(STARTS[tab]);
  if (event.target instanceof Element && event.target.closest(TYPED)) return false;
  if (event.key === "?") return showKeys();
  const action = tab === "live" ? LIVE[event.key.toLowerCase()] : null;
  return Boolean(action && action());
}

function showKeys() {
  help = help || makeHelp();
  help.showModal();
  return true;
}

function makeHelp() {
  const rows = KEYS.map(([key, action]) => h("tr", {}, h("td", {}, h("kbd", {}, key)), h("td", {}, action)));
  const dialog = h("dialog", { class: "keys", id: "keys", "aria-labelledby": "keys-title" },
    h("h2", { id: "keys-title" }, "Keyboard shortcuts"), h("table", {}, h("tbody", {}, rows)),
    button("Close", () => dialog.close()));
  document.body.append(dialog);
  return dialog;
}

/** @param {string} selector */
function press(selector) {
  /** @type {HTMLInputElement | HTMLButtonElement | null} */
  const control = document.querySelector(selector);
  if (!control || control.disabled || control.offsetParent === null) return false;
  control.click();
  return true;
}

/** @param {number} change */
function changeSmoothing(change) {
  /** @type {HTMLInputElement | null} */
  const slider = document.querySelector("#live-smoothing");
  if (!slider) return false;
  slider.value = String(Number(slider.value) + change);
  slider.dispatchEvent(new Event("input"));
  return true;
}

/** Gradio builds a tab when it is first opened: add its heading and the missing roles then. */
function repair() {
  waiting = null;
  for (const panel of document.querySelectorAll("#tabs > [role=tabpanel]")) {
    const tab = document.getElementById(panel.id + "-button");
    if (!tab || panel.firstElementChild?.matches(".tab-title")) continue;
    panel.prepend(h("h2", { class: "tab-title sr-only" }, originalText(tab)));
  }
  for (const empty of document.querySelectorAll("div.empty[aria-label]:not([role])")) {
    empty.setAttribute("role", "group");
  }
}

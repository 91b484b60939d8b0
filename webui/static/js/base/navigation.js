/* Tabs, the tab in the address, and the light and dark theme. */
import { originalText } from "./translations.js";
import { recall, remember } from "./storage.js";

const PRESSES = 60;  // Frames, one second; on narrow windows Gradio moves the buttons meanwhile.
let wantedTab = "", linkedTab = "";

/** The name of the open tab. */
export function nameOfOpenTab() {
  /** @type {HTMLElement | null} */
  const tab = document.querySelector("#tabs [role=tab][aria-selected=true]");
  return tab?.dataset.tabId || "";
}

/** @param {string} name */
export function openTab(name) {
  wantedTab = name;
  pressTab(name, PRESSES);
}

/** Click a tab; on narrow windows its button is in a menu, where it has no id.
 * @param {string} name @param {number} tries */
function pressTab(name, tries) {
  /** @type {HTMLElement[]} */
  const hidden = [...document.querySelectorAll("#tabs .overflow-dropdown button")].filter(
    (element) => element instanceof HTMLElement);
  const isNamed = (/** @type {Element} */ element) => originalText(element).trim().toLowerCase() === name;
  (document.getElementById("tab-" + name + "-button") || hidden.find(isNamed))?.click();
  // The click is lost if the button is just moving between the row and the menu, so check.
  requestAnimationFrame(() => {
    const panel = document.getElementById("tab-" + name);
    // Stop if another tab was wanted meanwhile; two retry loops would fight forever.
    if (tries && wantedTab === name && panel && !panel.offsetParent) pressTab(name, tries - 1);
  });
}

/** Open the tab named in the address, unless the user has clicked something since. */
export function openLinkedTab() {
  if (linkedTab && !wantedTab) openTab(linkedTab);
}

export function switchTheme() {
  const isDark = document.body.classList.toggle("dark");
  document.dispatchEvent(new Event("timbre-theme"));
  remember("timbre-dark", isDark ? "1" : "0");
}

/** Show the remembered theme, and keep the open tab in the address, so that a reload returns to it. */
export function startNavigation() {
  linkedTab = new URLSearchParams(location.search).get("tab") || "";
  const dark = recall("timbre-dark");
  if (dark != null && !location.search.includes("__theme")) {
    document.body.classList.toggle("dark", dark === "1");
  }
  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    // Not an onclick attribute: the Content-Security-Policy forbids scripts in attributes.
    if (target?.closest(".theme-switch")) switchTheme();
    /** @type {HTMLElement | null | undefined} */
    const tab = target?.closest("#tabs [data-tab-id]");
    const name = tab?.dataset.tabId || "";
    if (event.isTrusted) wantedTab = name || wantedTab || "-";
    if (tab) setAddress("tab", name);
  });
}

/** Put a value into the address without loading it. @param {string} name @param {string} value */
export function setAddress(name, value) {
  const address = new URL(location.href);
  address.searchParams.set(name, value);
  history.replaceState(null, "", address);
}

/* The Data tab: the buttons of the issue table, and a warning before unsaved edits are lost. */
import { translate } from "../base/dictionary.js";

/** Gradio components accept only known event names, so these three stand for our actions.
 * @type {Record<string, string>} */
const EVENTS = { show: "click", "leave-out": "delete", limit: "apply" };
const STARTS = "#start-training, #add-to-queue";
const QUESTION = "The Data tab has unsaved edits: this run would train on the old texts. Start anyway?";
let draft = "";

/** @param {HTMLElement} element @param {Trigger} trigger */
export function mountFindings(element, trigger) {
  element.addEventListener("click", (event) => {
    /** @type {HTMLElement | null} */
    const pressed = /** @type {Element} */ (event.target).closest("button[data-action]");
    if (pressed) trigger(EVENTS[pressed.dataset.action || ""], { kind: pressed.dataset.kind });
  });
}

/** Read the lists again, as the button does. */
export function checkData() {
  document.getElementById("check-data")?.click();
}

/** Remember the unsaved edits; an empty text means there are none. @param {string | null} text */
export function setDraft(text) {
  draft = text || "";
}

/** Ask before unsaved edits are lost or a run starts without them. */
export function startDraftGuard() {
  window.addEventListener("beforeunload", (event) => {
    if (draft) event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    const isStart = draft && event.target instanceof Element && event.target.closest(STARTS);
    if (!isStart || window.confirm(translate(QUESTION))) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
}

/* Form validation: shows problems next to their fields, and announces them to screen readers.

   Edited fields are checked on the server after a pause in typing; the marks in its answer replace
   all earlier ones. A field is built when its tab is first opened or its entry chosen, so marks wait. */
import { h } from "../base/dom.js";
import { nameOfOpenTab, openTab } from "../base/navigation.js";
import { setText } from "../base/translations.js";

const PAUSE_MS = 400, REPAIR_MS = 100;
const TRIES = 150;  // Looks for a field on a tab that Gradio is building, every REPAIR_MS.
const CONTROLS = "input, textarea, select";
/** The fields of the form, as a CSS selector. */
export const FIELDS = ["data", "training", "family", "optimizer", "schedule", "optimization"]
  .map((part) => `[id^="${part}-"]`).join(", ") + ", #dataset, #base";
/** @type {Map<string, FieldMark>} */
let marks = new Map();
/** @type {ReturnType<typeof setTimeout> | undefined} */
let pause;
/** @type {ReturnType<typeof setTimeout> | null} */
let repair = null;
/** @type {HTMLElement | null} */
let said = null;
let ask = () => {};

/** @param {HTMLElement} _element @param {Trigger} trigger */
export function mountFieldErrors(_element, trigger) {
  ask = () => trigger("input");
  announcer();
}

/** The element that screen readers speak. */
function announcer() {
  said ??= h("div", { class: "sr-only", role: "status", id: "fields-said" });
  if (!said.isConnected) document.body.append(said);
  return said;
}

/** Ask the server to check the whole form now. */
export function checkForm() {
  clearTimeout(pause);
  ask();
}

/** Show the marks of an answer: JSON with `marks`, and `pressed` if a button was refused. @param {string} text */
export function showFieldErrors(text) {
  /** @type {{ marks: FieldMark[], pressed?: boolean }} */
  const told = text ? JSON.parse(text) : { marks: [] };
  const news = told.marks.filter((mark) => marks.get(mark.field)?.words !== mark.words);
  marks = new Map(told.marks.map((mark) => [mark.field, mark]));
  render();
  setText(announcer(), news.map((mark) => mark.words).join(" "));
  if (told.pressed && told.marks.length) reveal(nearestMark(told.marks), TRIES);
}

/** The first marked field on the open tab, else the first of all. @param {FieldMark[]} found */
function nearestMark(found) {
  return found.find((mark) => mark.tab === nameOfOpenTab()) || found[0];
}

/** Open the tab of a field, which Gradio may only then build, and the collapsed parts around it.
 * @param {FieldMark} mark @param {number} tries */
function reveal(mark, tries) {
  if (mark.tab && nameOfOpenTab() !== mark.tab) openTab(mark.tab);
  const control = controlOf(mark.field);
  for (let fold = control?.closest("details"); fold; fold = fold.parentElement?.closest("details")) fold.open = true;
  if (control && control.offsetParent !== null) {
    render();
    control.focus({ preventScroll: true });
    document.getElementById(mark.field)?.scrollIntoView({ block: "center" });
  } else if (tries) setTimeout(() => reveal(mark, tries - 1), REPAIR_MS);
}

/** @param {string} field @returns {HTMLElement | null} */
function controlOf(field) {
  return document.getElementById(field)?.querySelector(CONTROLS) || null;
}

function render() {
  repair = null;
  for (const words of document.querySelectorAll(".field-problem")) {
    const field = words.getAttribute("data-field") || "";
    if (!marks.has(field)) unmark(field);
  }
  for (const mark of marks.values()) show(mark);
}

/** @param {FieldMark} mark */
function show({ field, words: text }) {
  const control = controlOf(field), id = field + "-problem";
  if (!control) return;
  const words = document.getElementById(id) || h("p", { class: "field-problem", id, "data-field": field });
  setText(words, text);
  if (!words.isConnected) document.getElementById(field)?.append(words);
  if (control.getAttribute("aria-describedby") !== id) control.setAttribute("aria-describedby", id);
  if (!control.hasAttribute("aria-invalid")) control.setAttribute("aria-invalid", "true");
}

/** @param {string} field */
function unmark(field) {
  document.getElementById(field + "-problem")?.remove();
  for (const name of ["aria-invalid", "aria-describedby"]) controlOf(field)?.removeAttribute(name);
}

/** Check the form after edits, and mark fields again that Gradio has rebuilt. */
export function startFieldChecks() {
  document.addEventListener("input", ({ target }) => {
    const field = target instanceof Element && target.closest("[id^=race-], " + FIELDS);
    if (!field) return;
    if (marks.delete(field.id)) unmark(field.id);
    if (field.id.startsWith("race-")) return;
    clearTimeout(pause);
    pause = setTimeout(checkForm, PAUSE_MS);
  });
  new MutationObserver(() => {
    if (marks.size) repair = repair || setTimeout(render, REPAIR_MS);
  }).observe(document.documentElement, { subtree: true, childList: true });
}

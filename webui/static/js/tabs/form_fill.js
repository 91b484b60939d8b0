/* Which fields were edited when, so that an answer never overwrites a later edit; presets, at once.

   Every edit and every request takes the next number. An answer fills a field only if the field was
   not edited after the request was made. A preset needs no server: what each one changes came with
   the page. */
import { FIELDS, showFieldErrors } from "./fields.js";

const FORM = FIELDS + ", #base, #run-name";
// Gradio says "input" of a list also when it only loses the focus, so choices are told by their value.
/** What each such list showed last. @type {Map<string, unknown>} */
const shown = new Map();
/** When each field was edited, and when each request was made. @type {Map<string, number>} */
const edited = new Map(), asked = new Map();
let count = 0, changed = 0, answered = 0, empty = () => {}, isPlanShown = false;

/** Note that somebody edits a field now. @param {EventTarget | null} target */
function note(target) {
  const field = target instanceof Element && target.closest(FORM);
  if (!field) return;
  edited.set(field.id, ++count);
  // The name changes nothing of what Start does.
  if (field.id !== "run-name") forgetPlan();
}

/** The plan on the Start button may be wrong from now on. */
function forgetPlan() {
  changed = ++count;
  if (isPlanShown) empty();
  isPlanShown = false;
}

/** Note edits, before Gradio hears of them. */
export function startNotingEdits() {
  document.addEventListener("input", ({ target }) => note(target), true);
  document.addEventListener("mousedown", ({ target }) => {
    if (target instanceof Element && target.closest("[role=option]")) note(target);
  }, true);
  document.addEventListener("keydown", ({ key, target }) => {
    if (key === "Enter" && target instanceof Element && target.matches("[role=combobox]")) note(target);
  }, true);
}

/** @param {HTMLElement} _element @param {Trigger} trigger */
export function mountPlan(_element, trigger) {
  empty = () => trigger("change");
}

/** Note a request; the inputs pass through. A field whose value is "@stamp" takes the number.
 * @param {string} name @param {unknown[]} given */
export function askFields(name, given) {
  asked.set(name, ++count);
  return given.map((value) => value === "@stamp" ? String(count) : value);
}

/** The values of an answer in the order of the fields; undefined leaves a field as it is.
 * @param {string} name @param {string} text */
export function takeFields(name, text) {
  /** @type {{ order: string[], values: Record<string, unknown> }} */
  const { order, values } = JSON.parse(text);
  const since = asked.get(name) || 0;
  const taken = order.map((field) => {
    if (!(field in values) || (edited.get(field) || 0) > since) return undefined;
    // An answer to an older request must not overwrite this one either.
    edited.set(field, since);
    shown.set(field, values[field]);
    return values[field];
  });
  forgetPlan();
  return taken;
}

/** Whether a list shows something else than before; it is remembered. @param {string} field
 * @param {unknown} value @param {PresetFacts} facts */
function isNew(field, value, facts) {
  const known = shown.has(field) ? shown.get(field) : facts.shown[field];
  shown.set(field, value);
  return known !== value;
}

/** @returns {PresetFacts} */
function presets() {
  return JSON.parse(document.getElementById("preset-values")?.textContent || "");
}

/** The base checkpoint that goes with a family: the bundled one is of one family only.
 * @param {unknown} family @param {unknown} base @param {PresetFacts} facts */
function baseFor(family, base, facts) {
  if (base && base !== facts.bundled) return undefined;
  return family === facts.bundledFamily ? facts.bundled : "";
}

/** The choice of the data after a check of a list: those just checked, unless another choice was
 * made since the check began.
 * @param {string} path @param {string} demoPath @param {string} demo @param {string} own */
export function chooseDataset(path, demoPath, demo, own) {
  const isEdited = (edited.get("dataset") || 0) > (asked.get("check") || 0);
  return [isEdited ? undefined : path === demoPath ? demo : own];
}

/** The base checkpoint after a family was chosen; undefined where none was or it may stay.
 * @param {string} family @param {string} base */
export function chooseFamily(family, base, facts = presets()) {
  return [isNew("family-choice", family, facts) ? baseFor(family, base, facts) : undefined];
}

/** @param {string} preset @param {...unknown} now */
export function choosePreset(preset, ...now) {
  return valuesOfPreset(presets(), preset, now);
}

/**
 * The values that a preset sets, in the order of the fields; undefined leaves a field as it is.
 * Options of an entry that was not chosen before start at their defaults.
 * @param {PresetFacts} facts @param {string} preset
 * @param {unknown[]} now what the switches (lists of entries, checkboxes) and the base show
 */
export function valuesOfPreset(facts, preset, now) {
  const plan = isNew("preset", preset, facts) ? facts.plans[preset] : null;
  if (!plan) return facts.order.map(() => undefined);
  const before = Object.fromEntries(facts.switches.map((field, i) => [field, now[i]]));
  /** @type {Record<string, unknown>} */
  const values = {};
  for (const { unless = {}, set } of plan) {
    if (Object.entries(unless).every(([field, value]) => before[field] !== value)) Object.assign(values, set);
  }
  const family = values["family-choice"];
  if (family !== undefined && family !== before["family-choice"]) {
    values.base = baseFor(family, before.base, facts);
    shown.set("family-choice", family);
  }
  const number = ++count;
  for (const field of Object.keys(values)) edited.set(field, number);
  forgetPlan();
  return facts.order.map((field) => values[field]);
}

/** Show an answer to the form as it was: its problems, and, unless somebody edited on, the preset
 * that it shows and what Start will do. Returns the values of the list and of the button. @param {string} text */
export function takePlan(text) {
  const told = text ? JSON.parse(text) : {}, number = Number(told.stamp);
  // A busy server may answer two requests in the other order.
  if (!(number > answered)) return [undefined, undefined];
  answered = number;
  showFieldErrors(text);
  if (number < changed) return [undefined, undefined];
  shown.set("preset", told.preset);
  isPlanShown = true;
  return [told.preset, told.start];
}

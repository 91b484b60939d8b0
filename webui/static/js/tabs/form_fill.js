/* Which fields were edited when, so that an answer never overwrites a later edit; presets, at once.

   Every edit and every request takes the next number. An answer fills a field only if the field was
   not edited after the request was made. A preset needs no server: what each one changes came with
   the page. */
import { FIELDS, showFieldErrors } from "./fields.js";
import { fieldValue, resetFields, setField, withForm } from "./options.js";

const FORM = FIELDS + ", #run-name";
/** When each field was edited, when fields whose ids start alike returned to their defaults, and when
 * each request was made. @type {Map<string, number>} */
const edited = new Map(), reset = new Map(), asked = new Map();
let count = 0, changed = 0, answered = 0, empty = () => {}, isPlanShown = false, preset = "";
/** @type {PresetFacts} */
let presets = { plans: {}, initial: {}, bundled: "", bundledFamily: "", preset: "" };

/** Note that somebody edits a field now. @param {EventTarget | null} target */
function note(target) {
  const field = target instanceof Element && target.closest(FORM);
  if (!field) return;
  edited.set(field.id, ++count);
  if (field.id === "family-choice") followFamily(fieldValue(field.id));
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
}

/** @param {HTMLElement} _element @param {Trigger} trigger */
export function mountPlan(_element, trigger) {
  empty = () => trigger("change");
}

/** @param {HTMLElement} _element @param {Trigger} _trigger @param {{ presets: PresetFacts }} props */
export function mountPresets(_element, _trigger, props) {
  presets = props.presets;
}

/** Note a request; its inputs pass through, with the form's values and the request's number in place.
 * @param {string} name @param {unknown[]} given */
export function askFields(name, given) {
  asked.set(name, ++count);
  return withForm(given).map((value) => value === "@stamp" ? String(count) : value);
}

/** The number of the last edit of a field; a reset edits all fields whose ids start alike.
 * @param {string} field */
function lastEdit(field) {
  const resets = [...reset].filter(([start]) => field.startsWith(start)).map(([, number]) => number);
  return Math.max(edited.get(field) || 0, ...resets);
}

/** Fill the fields of an answer; returns the values of those that are Gradio's, in their order.
 * Undefined leaves a field as it is. @param {string} name @param {string} text */
export function takeFields(name, text) {
  /** @type {{ order: string[], values: Record<string, FieldValue> }} */
  const { order, values } = JSON.parse(text);
  const since = asked.get(name) || 0;
  const fresh = Object.entries(values).filter(([field]) => lastEdit(field) <= since);
  // An answer to an older request must not overwrite this one either.
  for (const [field] of fresh) edited.set(field, since);
  forgetPlan();
  setFields(Object.fromEntries(fresh.filter(([field]) => !order.includes(field))));
  const taken = Object.fromEntries(fresh);
  return order.map((field) => taken[field]);
}

/** @param {Record<string, FieldValue>} values */
function setFields(values) {
  for (const [field, value] of Object.entries(values)) setField(field, value);
}

/** Choose the base checkpoint that goes with a family: the bundled one is of one family only.
 * @param {FieldValue | undefined} family */
function followFamily(family) {
  const base = valueOf("base");
  if (base && base !== presets.bundled) return;
  edited.set("base", count);
  setField("base", family === presets.bundledFamily ? presets.bundled : "");
}

/** @param {string} field */
function valueOf(field) {
  return fieldValue(field) ?? presets.initial[field];
}

/** The choice of the data after a check of a list: those just checked, unless another choice was
 * made since the check began. @param {string} demoPath @param {string} demo @param {string} own */
export function chooseDataset(demoPath, demo, own) {
  const isEdited = lastEdit("dataset") > (asked.get("check") || 0);
  return [isEdited ? undefined : fieldValue("data-train_csv") === demoPath ? demo : own];
}

/** Fill the fields that a preset sets. Options of an entry that was not chosen before start at their
 * defaults. Gradio says "input" of its list also when that only loses the focus. @param {string} chosen */
export function choosePreset(chosen) {
  const plan = chosen !== (preset || presets.preset) && presets.plans[chosen];
  preset = chosen;
  if (!plan) return;
  const before = Object.fromEntries(Object.keys(presets.initial).map((field) => [field, valueOf(field)]));
  const number = ++count;
  for (const { unless = {}, reset: starts = [], set = {} } of plan) {
    if (Object.entries(unless).some(([field, value]) => before[field] === value)) continue;
    for (const start of starts) {
      reset.set(start, number);
      resetFields(start);
    }
    for (const field of Object.keys(set)) edited.set(field, number);
    setFields(set);
  }
  const family = valueOf("family-choice");
  if (family !== before["family-choice"]) followFamily(family);
  forgetPlan();
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
  preset = told.preset;
  isPlanShown = true;
  return [told.preset, told.start];
}

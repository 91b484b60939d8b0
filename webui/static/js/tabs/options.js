/* The fields of the form: shows the options of what is chosen, and keeps what every field holds.

   A field is a `.field` with an id; lists and checkboxes with `data-opens` show the options of the
   chosen entry in the slot of that name. A value stays when its field is gone, so that it is back
   with the entry; requests send all values that were edited or filled. */
import { h } from "../base/dom.js";

/** The input of a request that the form's values replace (webui/forms/field_updates.py). */
const UNREAD = "@form";
/** The values of the fields that were edited or filled; the others hold their defaults.
 * @type {Map<string, FieldValue>} */
const values = new Map();
/** What each `.form-panel` describes. @type {WeakMap<Element, FormFacts>} */
const forms = new WeakMap();

/** Show the form in an element; `trigger` tells the server at once of an edit of one field.
 * @param {HTMLElement} element @param {Trigger} trigger @param {{ form: FormFacts }} props */
export function mountForm(element, trigger, { form }) {
  const panel = panelOf(element);
  forms.set(panel, form);
  // What somebody chose before this script had loaded is an edit; noted when all that waited is mounted.
  const early = fieldsIn(panel).filter(isEdited);
  queueMicrotask(() => early.forEach((field) => field.dispatchEvent(new Event("input", { bubbles: true }))));
  /** @type {NodeListOf<HTMLElement>} */
  const slots = panel.querySelectorAll("[data-entry]");
  for (const slot of slots) show(slot, slot.dataset.entry || "");
  restore(panel);
  panel.addEventListener("change", ({ target }) => {
    if (fieldOf(target)?.id === form.tells) trigger("change");
  });
}

/** The value of a field; undefined while it holds its default. @param {string} id */
export function fieldValue(id) {
  return values.get(id);
}

/** Let a field hold a value, whether it is shown or not. @param {string} id @param {FieldValue} value */
export function setField(id, value) {
  values.set(id, value);
  refresh(id);
}

/** Let all fields whose ids start with these words hold their defaults. @param {string} start */
export function resetFields(start) {
  for (const id of [...values.keys()].filter((id) => id.startsWith(start))) {
    values.delete(id);
    refresh(id);
  }
}

/** The inputs of a request, with the form's values in their place. @param {unknown[]} given */
export function withForm(given) {
  return given.map((value) => value === UNREAD ? JSON.stringify(Object.fromEntries(values)) : value);
}

/** Keep what is edited. This must be the first of all listeners, because the others ask for the values. */
export function startKeepingValues() {
  window.addEventListener("input", ({ target }) => {
    const field = fieldOf(target);
    if (!field) return;
    showOther(field);
    values.set(field.id, read(field));
    open(field);
  }, true);
}

/** @param {EventTarget | null} target @returns {HTMLElement | null} */
function fieldOf(target) {
  return target instanceof Element ? target.closest(".field") : null;
}

/** @param {Element} element */
function fieldsIn(element) {
  /** @type {NodeListOf<HTMLElement>} */
  const fields = element.querySelectorAll(".field");
  return [...fields];
}

/** Whether a list or checkbox that the server laid out shows another value than its default. @param {HTMLElement} field */
function isEdited(field) {
  const [control] = controlsOf(field);
  if (isList(control)) return !control.selectedOptions[0]?.defaultSelected;
  return control.checked !== control.defaultChecked;
}

/** @param {Element} element @returns {HTMLElement} */
function panelOf(element) {
  return /** @type {HTMLElement} */ (element.closest(".form-panel"));
}

/** The control of a field, and the one for another value than those of its list. @param {Element} field */
function controlsOf(field) {
  /** @type {NodeListOf<HTMLInputElement | HTMLSelectElement>} */
  const controls = field.querySelectorAll("input, select");
  return [...controls];
}

/** @param {string} id */
function refresh(id) {
  const field = document.getElementById(id);
  if (!field) return;
  write(field, values.get(id));
  open(field);
  // Not an edit: edits are told by "input".
  field.dispatchEvent(new Event("change", { bubbles: true }));
}

/** @param {HTMLInputElement | HTMLSelectElement} control @returns {control is HTMLSelectElement} */
function isList(control) {
  return control instanceof HTMLSelectElement;
}

/** @param {HTMLInputElement | HTMLSelectElement} control */
function isOther(control) {
  return isList(control) && Boolean(control.selectedOptions[0]?.hasAttribute("data-other"));
}

/** @param {HTMLElement} field @returns {FieldValue} */
function read(field) {
  const [control, other] = controlsOf(field);
  if (!isList(control) && control.type === "checkbox") return control.checked;
  // False: another value is wanted, but not given.
  return isOther(control) ? other.value || false : control.value;
}

/** Let a field show a value; undefined is its default, which is what it showed first.
 * @param {HTMLElement} field @param {FieldValue | undefined} value */
function write(field, value) {
  const [control, other] = controlsOf(field);
  if (isList(control)) choose(control, other, value);
  else if (control.type === "checkbox") control.checked = value === undefined ? control.defaultChecked : value === true;
  else control.value = value === undefined ? control.defaultValue : String(value);
  showOther(field);
}

/** @param {HTMLSelectElement} list @param {HTMLInputElement | HTMLSelectElement | undefined} other
 * @param {FieldValue | undefined} value */
function choose(list, other, value) {
  const known = [...list.options].find((option) => value === undefined ? option.defaultSelected
    : option.value === value && !option.hasAttribute("data-other"));
  const chosen = known || list.querySelector("option[data-other]");
  if (chosen instanceof HTMLOptionElement) chosen.selected = true;
  if (other) other.value = known ? "" : String(value || "");
}

/** @param {HTMLElement} field */
function showOther(field) {
  const [control, other] = controlsOf(field);
  if (other) other.hidden = !isOther(control);
}

/** Show the options of what a field chooses. @param {HTMLElement} field */
function open(field) {
  const name = field.dataset.opens;
  /** @type {HTMLElement | null} */
  const slot = name ? panelOf(field).querySelector(`[data-slot="${name}"]`) : null;
  if (!name || !slot) return;
  const value = read(field);
  show(slot, value === true ? name : value ? `${name}-${value}` : "");
}

/** Build the fields of an entry in a slot, unless they are there already.
 * @param {HTMLElement} slot @param {string} key */
function show(slot, key) {
  const form = forms.get(panelOf(slot));
  if (!form || slot.dataset.shown === key) return;
  slot.dataset.shown = key;
  const { looks } = form, entry = form.entries[key];
  slot.replaceChildren();
  if (!entry) return;
  if (entry.about) slot.append(h("p", { class: "summary" }, entry.about));
  const [folded, main] = [true, false].map((wanted) => entry.fields
    .filter(([, look]) => looks[look][3] === wanted)
    .map(([name, look, start]) => makeField(`${entry.name}-${name}`, looks[look], start)));
  if (main.length) slot.append(h("div", { class: "fields" }, main));
  if (folded.length) {
    slot.append(h("details", { class: "fold", id: `${entry.name}-more` },
      h("summary", {}, "More"), h("div", { class: "fields" }, folded)));
  }
  restore(slot);
}

/** @param {string} id @param {FieldLook} look @param {FieldValue} start */
function makeField(id, [label, help, kind, , isOptional, choices], start) {
  const words = [h("span", {}, label), h("small", {}, help)];
  const typed = { autocomplete: "off", spellcheck: "false" };
  const parts = kind === "tick" ? [h("input", { type: "checkbox", checked: start }), " ", ...words]
    : kind === "list" ? [...words, h("select", { translate: "no" }, (choices || []).map((choice) =>
      h("option", { selected: choice === start }, choice)))]
      : [...words, h("input", { ...typed, value: start, placeholder: isOptional && "auto",
        inputmode: kind === "number" && "decimal" })];
  return h("div", { class: "field", id }, h("label", {}, parts));
}

/** Let all fields in an element show the values that are kept for them. @param {Element} element */
function restore(element) {
  for (const field of fieldsIn(element)) {
    if (values.has(field.id)) write(field, values.get(field.id));
    open(field);
  }
}

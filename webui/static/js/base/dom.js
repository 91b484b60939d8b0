/* Makes elements without innerHTML, and the small ones that several tabs share. */
import { page } from "./page.js";
import { setText } from "./translations.js";

/**
 * Make an element. Strings become text nodes, so untrusted text is never parsed as HTML.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {Attributes} [attributes] @param {...(Child | Child[])} children
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

/** @param {string} label @param {() => void} onclick @param {Attributes} [attributes] */
export function button(label, onclick, attributes) {
  return h("button", { type: "button", onclick, ...attributes }, label);
}

/** @param {string} label @param {() => void} onclick @param {Attributes} [attributes] */
export function smallButton(label, onclick, attributes) {
  return button(label, onclick, { class: "small", ...attributes });
}

/**
 * A button that shows a question on the first click and acts on the second.
 * @param {string} label @param {string} question @param {() => void} action @param {Attributes} [attributes]
 */
export function confirmButton(label, question, action, attributes) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const rest = () => {
    clearTimeout(timer);
    timer = undefined;
    element.classList.remove("sure");
    setText(element, label);
  };
  const element = smallButton(label, () => {
    if (timer) {
      rest();
      return action();
    }
    element.classList.add("sure");
    setText(element, question);
    timer = setTimeout(rest, page.confirmMs);
  }, attributes);
  return element;
}

/** @param {string} state @param {string} [symbol] */
export function chip(state, symbol) {
  return h("span", { class: "chip chip-" + state }, symbol ? symbol + " " : null, state);
}

/** @param {string} name @param {unknown} value */
export function fact(name, value) {
  return h("span", { class: "fact" }, name.replaceAll("_", " ") + ": ", h("b", {}, String(value)));
}

export function progressBar() {
  return h("div", { class: "progress", role: "progressbar", "aria-label": "Progress" }, h("i"));
}

/** @param {HTMLElement} bar @param {number} percent */
export function setProgress(bar, percent) {
  /** @type {HTMLElement} */ (bar.firstChild).style.width = percent + "%";
  bar.setAttribute("aria-valuenow", String(Math.round(percent)));
}

/**
 * Offer other choices in a list, unless they are the same: a list that is open stays open.
 * @param {HTMLSelectElement} select @param {string[]} values @param {string[]} [labels]
 */
export function offerChoices(select, values, labels = values) {
  const offered = [...select.options].map((option) => option.value);
  if (offered.join("\n") === values.join("\n")) return;
  select.replaceChildren(...values.map((value, i) => h("option", { value }, labels[i])));
}

/** @param {string} kind @param {string[]} heads @param {(Child | Child[])[][]} rows */
export function table(kind, heads, rows) {
  return h("div", { class: "scroll" }, h("table", { class: "runs-table " + kind },
    heads.length ? h("thead", {}, h("tr", {}, heads.map((head) => h("th", {}, head)))) : null,
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell)))))));
}

/**
 * Call `refresh` now and periodically while the element is visible.
 * @param {HTMLElement} element @param {number} ms @param {() => Promise<void>} refresh
 */
export function whileShown(element, ms, refresh) {
  const isShown = () => element.isConnected && element.offsetParent !== null && !document.hidden;
  // A failed refresh is repeated by the next one; the status bar says that the server is away.
  const run = () => { if (isShown()) refresh().catch(() => {}); };
  new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) run();
  }).observe(element);
  setInterval(run, ms);
  run();
}

/**
 * Refresh shortly after an action was sent to the server, to show its effect.
 * @param {() => Promise<void>} refresh @param {...number} delaysMs
 */
export function refreshSoon(refresh, ...delaysMs) {
  for (const ms of delaysMs) setTimeout(() => refresh().catch(() => {}), ms);
}

/** Whether two values are the same; else the first becomes the known one. */
export class Changed {
  facts = "";

  /** @param {...unknown} values */
  by(...values) {
    const facts = JSON.stringify(values);
    const isNew = facts !== this.facts;
    this.facts = facts;
    return isNew;
  }
}

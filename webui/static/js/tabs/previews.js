/* The run of the Listen tab, and the list of its previews. */
import { h } from "../base/dom.js";
import { stepOf } from "../base/format.js";
import { getJson, previewOf, runUrl } from "../base/server.js";
import { setText } from "../base/translations.js";

const SPOKEN = "The same sentence during training";
const DRAWN = "Generated codes during training, next to the recorded ones";
/** @type {((run: string | null) => void)[]} */
const listeners = [];
/** @type {string | null} */
let listened = null;

/** Choose the run of the Listen tab; returns it, so that Gradio passes it to the server.
 * @param {string | null} run */
export function listenTo(run) {
  listened = run;
  for (const listener of listeners) listener(run);
  return run;
}

/** Call a function with the run of the Listen tab, now and when it changes.
 * @param {(run: string | null) => void} listener */
export function onListen(listener) {
  listeners.push(listener);
  listener(listened);
}

/** The previews of the run on the Listen tab, oldest first. @param {HTMLElement} element */
export function mountPreviews(element) {
  const list = h("div", { class: "previews" }), title = h("h3", {}, SPOKEN);
  element.replaceChildren(title, list);
  onListen(async (run) => {
    const answer = run ? await getJson(runUrl(run, "previews")).catch(() => null) : null;
    /** @type {string[]} */
    const files = answer ? answer.files : [];
    if (run !== listened) return;
    setText(title, files.length && files.every((file) => file.endsWith(".svg")) ? DRAWN : SPOKEN);
    if (!run || !files.length) return list.replaceChildren(h("p", { class: "quiet" }, "No previews yet."));
    list.replaceChildren(...files.map((file) => h("div", { class: "preview" },
      h("b", {}, "step " + stepOf(file)), previewOf(run, file))));
  });
}

/* The panel of the Data tab that shows the progress of cutting recordings and offers the clips. */
import { h, progressBar, refreshSoon, setProgress, smallButton, whileShown } from "../base/dom.js";
import { settings } from "../base/page.js";
import { getJson } from "../base/server.js";
import { setText } from "../base/translations.js";

/** @type {CutPanel | null} */
let panel = null;

/** @param {HTMLElement} element @param {Trigger} trigger */
export function mountCut(element, trigger) {
  const shown = panel = new CutPanel(element, trigger);
  whileShown(element, 2 * settings.pollMs, () => shown.refresh());
}

/** Called after a start: show the progress soon. */
export function refreshSegmentation() {
  const shown = panel;
  if (shown) refreshSoon(() => shown.refresh(), 300);
}

class CutPanel {
  /** @param {HTMLElement} element @param {Trigger} trigger */
  constructor(element, trigger) {
    this.words = h("span", { role: "status", id: "cut-words" });
    this.stop = smallButton("Stop", () => trigger("click", { action: "stop" }), { id: "cut-stop" });
    this.use = smallButton("Use these clips", () => trigger("apply", {}), { id: "cut-use", class: "small primary" });
    this.bar = progressBar();
    this.faults = h("ul", { class: "quiet" });
    this.main = h("div", { class: "live trial", hidden: true },
      h("div", { class: "toolbar" }, this.words, this.use, this.stop), this.bar, this.faults);
    element.replaceChildren(this.main);
  }

  async refresh() {
    /** @type {Cutting} */
    const told = await getJson("studio/cut");
    this.main.hidden = told.state === "none";
    this.stop.hidden = this.bar.hidden = told.state !== "running";
    this.use.hidden = !told.found;
    setProgress(this.bar, told.total ? 100 * told.done / told.total : 0);
    setText(this.words, cuttingWords(told));
    const faults = told.found ? told.found.faults : [];
    if (faults.length !== this.faults.children.length) {
      this.faults.replaceChildren(...faults.map((fault) => h("li", {}, fault)));
    }
  }
}

/** @param {Cutting} told */
export function cuttingWords({ state, phase, done, total, found, problem }) {
  if (state === "running") {
    return phase === "cut" ? `Cut ${done} of ${total} recordings.`
      : phase === "text" ? `Transcribed ${done} of ${total} clips.` : "Starting.";
  }
  if (!found) return problem || "Cutting was stopped. Cut again to continue.";
  const minutes = (/** @type {number} */ seconds) => (seconds / 60).toFixed(1);
  const kept = minutes(found.clips_s), all = minutes(found.recordings_s);
  return found.without_text
    ? `${found.clips} clips, ${kept} of ${all} minutes; ${found.without_text} have no text yet.`
    : `${found.clips} clips, ${kept} of ${all} minutes.`;
}

/* The history of a run in sentences: starts, checkpoints, previews, notices and ends. */
import { h } from "../base/dom.js";
import { clock, number } from "../base/format.js";

const MOST = 200;
/** @type {Record<string, string>} */
const ENDS = { finished: "Training finished.", stopped: "Stopped and saved.", failed: "Training failed." };

export class History {
  constructor() {
    this.list = h("ol", { class: "history", reversed: true });
    this.element = h("details", { id: "live-history" }, h("summary", {}, "History"), this.list);
  }

  clear() {
    this.list.replaceChildren();
  }

  /** @param {Mark} mark */
  add(mark) {
    const words = describeMark(mark);
    if (!words) return;
    this.list.prepend(h("li", {}, h("time", { class: "quiet" }, clock(mark.time)),
      h("b", {}, "step " + mark.step), h("span", {}, words)));
    while (this.list.children.length > MOST) this.list.lastChild?.remove();
  }
}

/** Describe a mark of the time axis in one sentence. @param {Mark} mark */
export function describeMark({ kind, step, values }) {
  if (kind === "started") return step > 0 ? `Resumed from step ${step}.` : "Training started.";
  if (kind === "checkpoint") {
    const size = number(values.size_bytes / 2 ** 20, 3);
    return `${values.best ? "Best checkpoint so far" : "Checkpoint"} saved, ${size} MiB.`;
  }
  if (kind === "preview") return "A preview was generated.";
  if (kind === "plan") return `The run now ends at step ${values.last_step}.`;
  if (kind === "notice") return values.text;
  if (kind === "finished") return `${ENDS[values.outcome] || values.outcome} ${values.reason || ""}`.trim();
  return "";
}

/** Whether a notice repeats an earlier one because the run was resumed. @param {Mark} mark @param {Series} series */
export function isRepeated(mark, series) {
  return series.markedAs("started").some((start) => start.step > 0 && start.step === mark.step) &&
    series.markedAs("notice").some((other) => other.step < mark.step && other.values.text === mark.values.text);
}

/** The marks on the axis of a chart: checkpoints, resumes, changes of the last step and warnings.
 * @param {Series} series @param {Over} over @returns {AxisMark[]} */
export function axisMarks(series, over) {
  const best = series.markedAs("checkpoint").filter((mark) => mark.values.best).pop();
  const shown = (/** @type {Mark[]} */ found, /** @type {string} */ colour) => found.map((mark) => ({
    x: series.place(over, mark), colour, strong: mark === best, words: `step ${mark.step}: ${describeMark(mark)}` }));
  const alerts = series.markedAs("notice").filter((mark) =>
    mark.values.level !== "info" && !isRepeated(mark, series));
  return [
    ...shown(series.markedAs("checkpoint"), "--t-line-3"),
    ...shown(series.markedAs("started").filter((mark) => mark.step > 0), "--t-line-1"),
    ...shown(series.markedAs("plan"), "--t-line-4"), ...shown(alerts, "--t-bad"),
  ];
}

/* The charts of the Live tab: one for each chart name of the metrics table, and their toolbar. */
import { h, smallButton } from "../base/dom.js";
import { number, stopwatch } from "../base/format.js";
import { page } from "../base/page.js";
import { getJson, runUrl } from "../base/server.js";
import { COLOURS, Chart, ChartGroup } from "./chart.js";
import { axisRadios, curve, lookCheckbox, smoothingSlider } from "./curves.js";
import { axisMarks } from "./history.js";
import { LARGE_CHART, isVal, lossParts, metricsOf, smallCharts, titleOf, valMeasures } from "./metrics.js";
import { Overlay } from "./overlay.js";
import { Table } from "./series.js";

const HELP = "Drag to zoom, double-click to reset. Dots on the axis mark checkpoints (green, the best one larger), " +
  "resumes (blue), changes of the last step (purple) and warnings (red); hover over one for details.";
const FILES = ["metrics.csv", "metrics.json", "curves.png", "curves.svg"];
const SHORT_S = 30;  // A shorter range of time has ticks between the seconds.
/** Kept here because Gradio may rebuild the panel. @type {Look} */
const LOOK = { smoothing: 0.9, log: false, x: "step", clip: false };

export class LiveCharts {
  /** The rows of the zoomed range, with more detail. @type {Table | null} */
  detail = null;

  /** @param {() => boolean} isShown */
  constructor(isShown) {
    this.isShown = isShown;
    this.group = new ChartGroup((x) => this.formatX(x));
    this.group.onzoom = (range) => this.zoomed(range);
    const chart = (/** @type {string} */ title, large = false) => new Chart(this.group, {
      title, large, log: () => large && LOOK.log, clip: () => large && LOOK.clip });
    this.large = chart(titleOf(LARGE_CHART), true);
    this.parts = chart("Loss parts");
    this.small = smallCharts().map(({ name, title }) => ({ name, chart: chart(title) }));
    this.measures = chart("Eval measures");
    this.plays = h("div", { class: "plays" });
    /** @type {{ button: HTMLElement, mark: Mark }[]} */
    this.played = [];
    const small = [this.parts, ...this.small.map((item) => item.chart), this.measures];
    this.overlay = new Overlay(() => this.draw());
    this.reset = smallButton("Show all", () => this.group.setZoom(null), { id: "live-show-all", disabled: true });
    this.files = FILES.map((file) => h("a", { "data-file": file }, file.split(".")[1].toUpperCase()));
    this.element = h("div", {}, this.toolbar(), h("div", {},
      h("div", { class: "loss-box" }, this.large.element, this.plays, h("p", { class: "quiet key" }, HELP)),
      h("div", { class: "charts" }, small.map((item) => item.element))));
  }

  toolbar() {
    const redraw = () => this.draw();
    return h("div", { class: "toolbar" }, smoothingSlider(LOOK, redraw, "live-smoothing"),
      lookCheckbox("Log scale", "log", LOOK, redraw), lookCheckbox("Ignore spikes", "clip", LOOK, redraw),
      axisRadios("live-x", LOOK, () => this.group.setZoom(null)), this.overlay.element, this.reset,
      h("span", { class: "links", id: "live-downloads" }, "Download: ", this.files));
  }

  /** @param {number} x @returns {string} */
  formatX(x) {
    const { zoom } = this.group;
    if (LOOK.x !== "time") return number(x, 6);
    return zoom && zoom[1] - zoom[0] < SHORT_S ? `${x.toFixed(1)} s` : stopwatch(x);
  }

  /** Forget what belongs to another run. @param {string} run */
  startRun(run) {
    this.detail = this.group.zoom = null;
    this.reset.disabled = true;
    this.plays.replaceChildren();
    this.played = [];
    for (const link of this.files) {
      const file = link.dataset.file || "";
      link.href = runUrl(run, file);
      link.download = run + "." + file.split(".")[1];
    }
  }

  draw() {
    const { series } = page;
    if (!series?.status || !this.isShown()) return;
    this.large.set(this.linesOf(series, LARGE_CHART), axisMarks(series, LOOK.x));
    for (const { name, chart } of this.small) chart.set(this.linesOf(series, name));
    this.parts.set(this.linesNamed(series, lossParts(Object.keys(series.steps.columns))));
    const measures = valMeasures(Object.keys(series.validations.columns));
    this.measures.element.hidden = !measures.length;
    this.measures.set(this.linesNamed(series, measures));
    this.placePlays(series);
  }

  /** The lines of a chart of the table; those of the other run have the last colours.
   * @param {Series} series @param {string} chart */
  linesOf(series, chart) {
    const drawn = metricsOf(chart).filter(({ name }) => series.shows(name) && series.tableOf(name).has(name));
    const own = drawn.flatMap(({ name }, i) => this.lines(series, name, COLOURS[i % COLOURS.length]));
    return [...own, ...drawn.flatMap(({ name, label }, i) => this.overlay.lines(name, LOOK,
      { colour: COLOURS[COLOURS.length - 1 - i % COLOURS.length], label: drawn.length > 1 ? label : "" }))];
  }

  /** The smoothed lines of metrics that only a family knows. @param {Series} series @param {string[]} names */
  linesNamed(series, names) {
    return names.slice(0, COLOURS.length).flatMap((name, i) => this.lines(series, name, COLOURS[i]))
      .filter((line) => line.kind !== "faint");
  }

  /** @param {Series} series @param {string} name @param {string} colour */
  lines(series, name, colour) {
    const table = !isVal(name) && this.detail ? this.detail : series.tableOf(name);
    return curve(series, name, LOOK, { colour }, table);
  }

  /** Read the zoomed range again, because the columns are thinned. @param {Span | null} range */
  async zoomed(range) {
    const { series } = page;
    this.detail = null;
    this.reset.disabled = !range;
    this.draw();
    const steps = range && series?.stepsWithin(LOOK.x, range);
    if (!series || !steps) return;
    // Start before the range, so that the smoothed line looks the same as in the full view.
    const from = Math.max(0, Math.floor(steps[0] - (steps[1] - steps[0]) / 2));
    const query = `rows?from=${from}&to=${Math.ceil(steps[1])}&max=1500`;
    const answer = await getJson(runUrl(series.run, query)).catch(() => null);
    if (!answer || series !== page.series || this.group.zoom !== range) return;
    this.detail = new Table();
    this.detail.append(answer.steps);
    this.draw();
  }

  /** A button above the chart that plays a preview where it was made. @param {Mark} mark @param {() => void} play */
  addPlay(mark, play) {
    const button = h("button", { type: "button", class: "play", "data-step": mark.step,
      "aria-label": "Play the preview of step " + mark.step, onclick: play }, "\u25b6");
    this.plays.append(button);
    this.played.push({ button, mark });
  }

  /** @param {Series} series */
  placePlays(series) {
    const { frame } = this.large;
    for (const { button, mark } of this.played) {
      const x = series.place(LOOK.x, mark);
      button.hidden = !frame || x < frame.x0 || x > frame.x1;
      if (frame) button.style.left = `${frame.px(x)}px`;
    }
  }
}

/* Compare two to six runs: curves in one chart, latest previews and the settings that differ. */
import { Changed, h, table } from "../base/dom.js";
import { duration, number, stepOf } from "../base/format.js";
import { getJson, getRows, previewOf, runUrl } from "../base/server.js";
import { setText } from "../base/translations.js";
import { COLOURS, Chart, ChartGroup } from "./chart.js";
import { axisRadios, curve, lookCheckbox, smoothingSlider } from "./curves.js";
import { METRICS, TRAIN_LOSS, VAL_LOSS, describeMetric } from "./metrics.js";
import { Series } from "./series.js";

const DASHES = [[], [8, 3], [2, 3], [8, 3, 2, 3], [12, 4], [4, 4]];
const PICTURES = ["png", "svg"];

export class Comparison {
  /** @type {Map<string, ComparedRun>} */
  runs = new Map();
  /** @type {string[]} */
  names = [];
  metric = TRAIN_LOSS;
  /** @type {Look} */
  look = { smoothing: 0.9, log: false, x: "step", clip: false };
  isReading = false;
  settingsShown = new Changed();
  previewsShown = new Changed();

  constructor() {
    const group = new ChartGroup((x) => this.look.x === "time" ? duration(x) : number(x, 6));
    group.onzoom = () => this.draw();
    this.group = group;
    this.chart = new Chart(group, { title: "", large: true, log: () => this.look.log });
    this.evals = new Chart(group, { title: describeMetric(VAL_LOSS).title, log: () => this.look.log });
    this.previews = h("div", { class: "previews" });
    this.settings = h("div");
    this.files = PICTURES.map((kind) => h("a", { download: "comparison." + kind }, kind.toUpperCase()));
    this.element = h("div", { class: "comparison", hidden: true }, h("h3", {}, "Comparison"), this.toolbar(),
      this.chart.element, this.evals.element, this.previews, this.settings);
  }

  toolbar() {
    const redraw = () => this.draw();
    const picker = h("select", { id: "compare-metric", "aria-label": "Metric", onchange: () => {
      this.metric = picker.value;
      redraw();
    } }, METRICS.filter((metric) => metric.compared).map(({ name, title }) => h("option", { value: name }, title)));
    return h("div", { class: "toolbar" }, picker, axisRadios("compare-x", this.look, () => this.group.setZoom(null)),
      smoothingSlider(this.look, redraw), lookCheckbox("Log scale", "log", this.look, redraw), this.files);
  }

  /** Show these runs (at least two), and keep reading those that are training. @param {string[]} names */
  async show(names) {
    this.names = names;
    this.element.hidden = names.length < 2;
    this.offerFiles();
    // Two concurrent reads would append the same rows twice. The read in progress uses the names
    // that are chosen when it ends.
    if (names.length < 2 || this.isReading) return;
    this.isReading = true;
    try {
      await Promise.all(names.map((name) => this.read(name)));
    } catch {
      return;  // One was discarded, or the server is away: the next poll tries again.
    } finally {
      this.isReading = false;
    }
    if (names.join("\n") === this.names.join("\n")) this.draw();
    else this.show(this.names);
  }

  /** @param {string} name */
  async read(name) {
    const known = this.runs.get(name);
    const run = known || { name, series: new Series(name), config: await getJson(runUrl(name, "config")),
      files: [], isWhole: false };
    this.runs.set(name, run);
    if (run.isWhole) return;
    const answer = await getRows(run.series);
    run.series.take(answer);
    run.files = (await getJson(runUrl(name, "previews"))).files;
    run.isWhole = !answer.status.active;
  }

  /** The server draws the pictures, so they are offered before the curves are read. */
  offerFiles() {
    const query = this.names.map((name) => "run=" + encodeURIComponent(name)).join("&");
    this.files.forEach((link, i) => {
      link.href = `studio/comparison.${PICTURES[i]}?${query}&metric=${encodeURIComponent(this.metric)}`;
    });
  }

  draw() {
    this.offerFiles();
    const found = this.names.flatMap((name) => this.runs.get(name) || []);
    if (found.length < 2 || found.length < this.names.length || found.some((run) => !run.series.status)) return;
    const { title } = describeMetric(this.metric);
    this.chart.options.title = title;
    setText(this.chart.title, title);
    this.chart.set(this.lines(found, this.metric));
    this.evals.element.hidden = this.metric === VAL_LOSS;
    this.evals.set(this.lines(found, VAL_LOSS));
    if (this.previewsShown.by(found.map((run) => [run.name, run.files]))) this.drawPreviews(found);
    if (this.settingsShown.by(this.names)) this.settings.replaceChildren(differences(found));
  }

  /** @param {ComparedRun[]} found @param {string} metric */
  lines(found, metric) {
    return found.flatMap(({ name, series }, i) => curve(series, metric, this.look,
      { label: name, colour: COLOURS[i], dash: DASHES[i] }).filter((line) => line.kind !== "faint"));
  }

  /** The latest preview of each run, one below the other. @param {ComparedRun[]} found */
  drawPreviews(found) {
    this.previews.replaceChildren(...found.filter((run) => run.files.length).map(({ name, files }) => {
      const file = files[files.length - 1];
      return h("div", { class: "preview" }, h("b", {}, name), previewOf(name, file),
        h("span", { class: "quiet" }, "step " + stepOf(file)));
    }));
  }
}

/** A table of the settings that differ between the runs. @param {ComparedRun[]} found */
function differences(found) {
  const flat = found.map((run) => flatten(run.config));
  const differing = differingNames(flat);
  if (!differing.length) return h("p", { class: "quiet" }, "All settings are the same.");
  return table("differences", ["Setting", ...found.map((run) => run.name)],
    differing.map((name) => [name, ...flat.map((values) => values[name] ?? "-")]));
}

/** @param {Record<string, string>[]} flat */
export function differingNames(flat) {
  const names = [...new Set(flat.flatMap((values) => Object.keys(values)))].sort();
  return names.filter((name) => new Set(flat.map((values) => values[name])).size > 1);
}

/** Settings by their dotted names. @param {object} values @param {string} [prefix]
 * @returns {Record<string, string>} */
export function flatten(values, prefix = "") {
  return Object.assign({}, ...Object.entries(values).map(([name, value]) => {
    if (!value || typeof value !== "object") return { [prefix + name]: value === "" ? "(empty)" : String(value) };
    // An optimization without options is on because it is there.
    if (prefix === "optimizations." && !Object.keys(value).length) return { [prefix + name]: "on" };
    return flatten(value, prefix + name + ".");
  }));
}

/* Two panels of the Train tab: the learning-rate search and the benchmark of optimizations. */
import { Changed, fact, h, offerChoices, progressBar, refreshSoon, setProgress, smallButton,
  whileShown } from "../base/dom.js";
import { duration, number } from "../base/format.js";
import { settings } from "../base/page.js";
import { getJson } from "../base/server.js";
import { setText } from "../base/translations.js";
import { COLOURS, Chart, ChartGroup } from "../charts/chart.js";

const REFRESH_MS = 2 * settings.pollMs;
const GROUPS = [["chosen", "As selected in the form"], ["ladder", "Cumulative, from none to all"],
  ["guide", "The three main options, one after another"], ["alone", "Each option alone"], ["noise", "The first row repeated"]];
const FACTS = ["device", "torch", "python", "cuda", "threads", "family", "size", "batch_size", "optimizer", "clips"];
const BAR_PERCENT = 60;  // Width of the longest bar; the words follow it.
/** @type {RatePanel | null} */
let ratePanel = null;
/** @type {MeasurePanel | null} */
let measurePanel = null;

/** @param {HTMLElement} element @param {Trigger} trigger */
export function mountRates(element, trigger) {
  const shown = ratePanel = new RatePanel(element, trigger);
  whileShown(element, REFRESH_MS, () => shown.refresh());
}

/** @param {HTMLElement} element @param {Trigger} trigger */
export function mountMeasure(element, trigger) {
  const shown = measurePanel = new MeasurePanel(element, trigger);
  whileShown(element, REFRESH_MS, () => shown.refresh());
}

export function refreshRates() {
  const shown = ratePanel;
  if (shown) refreshSoon(() => shown.refresh(), 300);
}

export function refreshMeasurements() {
  const shown = measurePanel;
  if (shown) refreshSoon(() => shown.refresh(), 300);
}

class RatePanel {
  drawn = new Changed();

  /** @param {HTMLElement} element @param {Trigger} trigger */
  constructor(element, trigger) {
    this.words = h("span", { role: "status", id: "rates-words" });
    this.stop = smallButton("Stop", () => trigger("click", { action: "stop" }), { id: "rates-stop" });
    this.use = smallButton("Use this rate", () => trigger("apply", {}), { id: "rates-use", class: "small primary" });
    this.bar = progressBar();
    this.chart = new Chart(new ChartGroup((x) => number(10 ** x, 2)),
      { title: "Loss change at each learning rate", clip: () => true });
    this.main = h("div", { class: "live trial", hidden: true },
      h("div", { class: "toolbar" }, this.words, this.use, this.stop), this.bar, this.chart.element);
    element.replaceChildren(this.main);
  }

  async refresh() {
    /** @type {RateSearch} */
    const { state, finding, optimizer, done, total, problem } = await getJson("studio/rates");
    const isRunning = state === "running";
    this.main.hidden = state === "none";
    this.stop.hidden = this.bar.hidden = !isRunning;
    this.use.hidden = isRunning || finding?.suggestion == null;
    setProgress(this.bar, total ? 100 * done / total : 0);
    setText(this.words, isRunning ? `Trying rates for ${optimizer}: ${done} of ${total || "?"}`
      : finding ? finding.text : problem || "The search was stopped.");
    this.chart.element.hidden = !finding;
    if (finding && this.drawn.by(finding.text)) this.chart.set(...rateCurves(finding));
  }
}

/** The losses by the logarithm of the rate, without those above the start of the search.
 * @param {RateFinding} finding @returns {[Line[], AxisMark[]]} */
export function rateCurves({ rates, changes, smooth, suggestion, lost }) {
  const x = rates.map((rate) => Math.log10(rate)), [colour] = COLOURS;
  const deepest = Math.max(...changes.map((value) => -(value ?? 0)));
  const near = (/** @type {Values} */ values) => values.map((value) => value == null || value > deepest ? null : value);
  const mark = (/** @type {number | null} */ rate, /** @type {string} */ ink) =>
    rate ? [{ x: Math.log10(rate), colour: ink, strong: true }] : [];
  return [[{ label: "every step", colour, x, y: near(changes), kind: "faint" },
    { label: "smoothed", colour, x, y: near(smooth), kind: "line" }],
  [...mark(suggestion, "--t-line-3"), ...mark(lost, "--t-bad")]];
}

class MeasurePanel {
  drawn = new Changed();
  chosen = "";
  wasRunning = false;

  /** @param {HTMLElement} element @param {Trigger} trigger */
  constructor(element, trigger) {
    this.words = h("span", { role: "status", id: "measure-words" });
    this.stop = smallButton("Stop and keep the results", () => trigger("click", { action: "stop" }), { id: "measure-stop" });
    this.picker = h("select", { "aria-label": "Measurement", id: "measure-choice", onchange: () => {
      this.chosen = this.picker.value;
      this.refresh();
    } });
    this.machine = h("div", { class: "states" });
    this.rows = h("div", { class: "bars", id: "measure-rows" });
    this.main = h("div", { class: "live trial", hidden: true },
      h("div", { class: "toolbar" }, this.picker, this.words, this.stop), this.machine, this.rows);
    element.replaceChildren(this.main);
  }

  async refresh() {
    /** @type {{ kept: Measurement[], running: boolean, problem: string }} */
    const { kept, running, problem } = await getJson("studio/measurements");
    this.main.hidden = !kept.length && !running && !problem;
    this.stop.hidden = !running;
    if (running && !this.wasRunning) this.chosen = "";
    this.wasRunning = running;
    offerChoices(this.picker, kept.map((one) => one.file),
      kept.map((one) => one.made_at ? `${one.made_at}, ${one.model.family}` : "now"));
    this.picker.hidden = kept.length < 2;
    const shown = kept.find((one) => one.file === this.chosen) || kept[0];
    setText(this.words, problem || measuringWords(shown, running && shown === kept[0]));
    if (!shown || !this.drawn.by(shown.file, shown.rows.length, shown.state)) return;
    const machine = { ...shown.machine, ...shown.model };
    this.machine.replaceChildren(h("div", {}, FACTS.filter((name) => machine[name] != null)
      .map((name) => fact(name, machine[name]))));
    this.rows.replaceChildren(...rowGroups(shown.rows));
  }
}

/** @param {Measurement | undefined} shown @param {boolean} isNow */
function measuringWords(shown, isNow) {
  if (!shown) return "Starting.";
  if (!isNow) return `Measured in ${duration(shown.seconds)}: ${shown.state}.`;
  return shown.rows.length ? `Measured ${shown.rows.length} of ${shown.model.planned} rows.`
    : "Measuring the first row; each row runs in a new process.";
}

/** List each row once, under its first group; bars are relative to the longest. @param {Trial[]} rows */
function rowGroups(rows) {
  const longest = Math.max(...rows.map((row) => row.s_per_step || 0), 1e-9);
  const largest = Math.max(...rows.map((row) => row.peak_gib || 0), 1e-9);
  const shown = new Set();
  return GROUPS.flatMap(([group, title]) => {
    const mine = rows.filter((row) => row.groups.includes(group) && !shown.has(row));
    mine.forEach((row) => shown.add(row));
    return mine.length ? [h("h4", {}, title), ...mine.map((row) => rowBars(row, rows[0], longest, largest))] : [];
  });
}

/** @param {Trial} row @param {Trial} first @param {number} longest @param {number} largest */
function rowBars(row, first, longest, largest) {
  const line = (/** @type {number} */ share, /** @type {string} */ colour, /** @type {string} */ words) =>
    h("div", { class: "bar" }, h("i", { style: `width:${Math.max(0.5, BAR_PERCENT * share)}%;background:var(${colour})` }),
      h("span", {}, words));
  if (row.state !== "done") {
    return h("div", { class: "bar-row" }, h("b", {}, row.label), h("span", { class: "quiet" }, `${row.state}: ${row.reason}`));
  }
  const ratio = first.s_per_step && row !== first ? `, ${number(first.s_per_step / row.s_per_step, 3)}x as fast` : "";
  const peak = row.peak_gib ?? 0;
  const less = first.peak_gib && row !== first ? `, ${number(100 * (peak / first.peak_gib - 1), 2)} %` : "";
  const states = Object.keys(row.boxes).map((name) => {
    const { on = false, detail = "" } = row.on[name] || {};
    return h("span", { class: "fact " + (on ? "on" : "missing"), title: detail },
      name.replaceAll("_", " ") + (on ? " on" : " not on"));
  });
  return h("div", { class: "bar-row" }, h("b", {}, row.label),
    line(row.s_per_step / longest, COLOURS[0], `${number(row.s_per_step, 3)} s/step${ratio}`),
    row.peak_gib == null ? null : line(peak / largest, COLOURS[3], `${number(peak, 3)} GiB${less}`),
    states.length ? h("div", { class: "tries" }, states) : null);
}

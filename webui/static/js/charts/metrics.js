/* Looks metrics up in the server's table (trainer/core/metrics.py). Only here are metrics named. */
import { settings } from "../base/page.js";

/** The metrics in the order of the page. */
export const METRICS = settings.metrics;

/** The metrics that the scripts treat specially; a test looks each of them up in the table. */
export const TRAIN_LOSS = "train/loss", VAL_LOSS = "val/loss", LR = "train/lr",
  LR_SCHEDULED = "train/lr_scheduled", S_PER_STEP = "perf/s_per_step", MEMORY = "perf/memory_gib",
  MEMORY_RESERVED = "perf/memory_reserved_gib", MEMORY_PEAK = "perf/memory_peak_gib",
  HOST_MEMORY = "perf/host_memory_gib", UTILISATION = "perf/utilisation_percent",
  TEMPERATURE = "perf/temperature_c", DATA_WAIT = "perf/data_wait_s", OPTIMIZER = "perf/optimizer_s";

/** Charts with a drawing of their own: the large one, and the bar of the parts of a step. */
export const LARGE_CHART = "loss", BREAKDOWN = "breakdown";

/** How a metric is shown; a family's own metric is labelled by its name. @param {string} name @returns {Metric} */
export function describeMetric(name) {
  const label = (name.split("/").pop() || name).replaceAll("_", " ");
  return METRICS.find((metric) => metric.name === name) || { name, label, title: label, unit: "", digits: 3,
    lower_is_better: null, chart: "", tile: false, smoothed: !isVal(name), compared: false };
}

/** The metrics that a chart draws. @param {string} chart */
export function metricsOf(chart) {
  return METRICS.filter((metric) => metric.chart === chart);
}

/** The small charts, in the order of the table: their names and titles. */
export function smallCharts() {
  const names = [...new Set(METRICS.map((metric) => metric.chart))];
  return names.filter((name) => name && name !== LARGE_CHART && name !== BREAKDOWN)
    .map((name) => ({ name, title: titleOf(name) }));
}

/** The title of a chart: that of its metric, or its own name with the unit. @param {string} chart */
export function titleOf(chart) {
  const drawn = metricsOf(chart), unit = drawn[0]?.unit;
  if (drawn.length === 1) return drawn[0].title;
  const name = chart[0].toUpperCase() + chart.slice(1);
  return unit ? `${name} (${unit})` : name;
}

/** Whether a metric is measured at validations, not at every step. @param {string} name */
export function isVal(name) {
  return name.startsWith("val/");
}

/** Whether a metric is about speed or memory, which not every device reports. @param {string} name */
export function isPerf(name) {
  return name.startsWith("perf/");
}

/** The parts of the training loss among the names of columns. @param {string[]} names */
export function lossParts(names) {
  return names.filter((name) => name.startsWith(TRAIN_LOSS + "/"));
}

/** What a family measures on the validation clips. @param {string[]} names */
export function valMeasures(names) {
  return names.filter((name) => isVal(name) && name !== VAL_LOSS && !name.startsWith(VAL_LOSS + "/"));
}

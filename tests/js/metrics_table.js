/* A small table of metrics in the form that the server gives the page. */
import { METRICS } from "../../webui/static/js/charts/metrics.js";

export function metric(name, label, values) {
  return { name, label, title: label, unit: "", digits: 3, lower_is_better: null, chart: "", tile: false,
    smoothed: false, compared: false, ...values };
}

/* Let the scripts know these metrics, and no others. */
export function useMetrics(...extra) {
  METRICS.splice(0, METRICS.length,
    metric("train/loss", "Train loss", { chart: "loss", tile: true, smoothed: true }),
    metric("val/loss", "Eval loss", { chart: "loss", tile: true }),
    metric("perf/memory_gib", "Memory", { title: "Memory (GiB)", unit: "GiB", chart: "memory", tile: true }),
    metric("perf/data_wait_s", "Waiting for data", { chart: "breakdown" }),
    metric("perf/forward_s", "Forward", { chart: "breakdown" }),
    metric("perf/backward_s", "Backward", { chart: "breakdown" }),
    metric("perf/optimizer_s", "Optimizer", { chart: "breakdown" }), ...extra);
}

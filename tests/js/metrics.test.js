import assert from "node:assert/strict";
import test from "node:test";
import { bottleneck, median, splitStep } from "../../webui/static/js/charts/breakdown.js";
import { curve } from "../../webui/static/js/charts/curves.js";
import { describeMetric, lossParts, metricsOf, smallCharts, titleOf, valMeasures }
  from "../../webui/static/js/charts/metrics.js";
import { Series, Table } from "../../webui/static/js/charts/series.js";
import { elapsedText, tileLabel } from "../../webui/static/js/tabs/tiles.js";
import { metric, useMetrics } from "./metrics_table.js";

const LOOK = { smoothing: 0.5, log: false, clip: false, x: "step" };

test.beforeEach(() => useMetrics());

function seriesOf(steps, validations = { columns: [], rows: [] }) {
  const series = new Series("one");
  series.steps.append(steps);
  series.validations.append(validations);
  series.status = { steps_per_epoch: 10 };
  return series;
}

test("a new metric of a known chart is drawn in it", () => {
  useMetrics(metric("perf/swap_gib", "Swap", { chart: "memory", tile: true }));

  assert.deepEqual(metricsOf("memory").map(({ label }) => label), ["Memory", "Swap"]);
  assert.equal(titleOf("memory"), "Memory (GiB)");
});

test("a new chart name is a new chart", () => {
  useMetrics(metric("perf/watts", "Power", { title: "Power (W)", unit: "W", chart: "power" }));

  assert.deepEqual(smallCharts(), [{ name: "memory", title: "Memory (GiB)" }, { name: "power", title: "Power (W)" }]);
});

test("smoothed metrics have their values behind, validations are dots, others one line", () => {
  const series = seriesOf({ columns: ["step", "time", "train/loss", "perf/memory_gib"], rows: [[1, 0, 4, 2], [2, 1, 2, 2]] },
    { columns: ["step", "time", "val/loss"], rows: [[2, 1, 3]] });

  const kinds = ["train/loss", "val/loss", "perf/memory_gib"].map((name) =>
    curve(series, name, LOOK).map((line) => line.kind));

  assert.deepEqual(kinds, [["faint", "line"], ["dots"], ["line"]]);
  assert.deepEqual(curve(series, "train/loss", LOOK)[0].y, [4, 2]);
  assert.equal(curve(series, "train/loss", LOOK)[1].y[1].toFixed(4), "2.6667");
});

test("metrics of a family are told apart by their names", () => {
  const names = ["step", "train/loss", "train/loss/mel", "val/loss", "val/loss/mel", "val/mel_l1_db"];

  assert.deepEqual(lossParts(names), ["train/loss/mel"]);
  assert.deepEqual(valMeasures(names), ["val/mel_l1_db"]);
  assert.equal(describeMetric("val/mel_l1_db").label, "mel l1 db");
});

test("the parts of a step and the rest add up to it", () => {
  const table = new Table();
  table.append({ columns: ["perf/forward_s", "perf/backward_s", "perf/optimizer_s", "perf/data_wait_s", "perf/s_per_step"],
    rows: [[0.2, 0.4, 0.1, 0.1, 1], [0.2, 0.4, 0.1, 0.1, 1], [9, 9, 9, 9, 1]] });

  const { seconds, shares } = splitStep(table);

  assert.equal(seconds["perf/forward_s"], 0.2);
  assert.ok(Math.abs(shares.rest - 0.2) < 1e-9);
  assert.ok(Math.abs(Object.values(shares).reduce((sum, share) => sum + share) - 1) < 1e-9);
  assert.equal(splitStep(new Table()), null);
});

test("the longest part that is not the model is the bottleneck", () => {
  const shares = (data, optimizer, rest) => ({ "perf/data_wait_s": data, "perf/optimizer_s": optimizer, rest });

  assert.match(bottleneck(shares(0.3, 0.3, 0.3), false), /^Waiting for data takes 30 % of a step/);
  assert.match(bottleneck(shares(0.1, 0.3, 0.3), false), /^The optimizer takes 30 %/);
  assert.match(bottleneck(shares(0.1, 0.1, 0.3), false), /^30 % of a step is spent outside/);
  assert.equal(bottleneck(shares(0.1, 0.1, 0.1), false), "The model itself takes 70 % of a step: there is no bottleneck.");
  assert.match(bottleneck(shares(0, 0, 0), true), /Gradient checkpointing/);
});

test("medians lie between the two middle values", () => {
  assert.deepEqual([median([3, 1, 2]), median([4, 1, 2, 3]), median([])], [2, 2.5, 0]);
});

test("the tile of memory says whose it is", () => {
  const series = seriesOf({ columns: [], rows: [] });
  const onCpu = tileLabel(series, describeMetric("perf/memory_gib"));
  series.marks.push({ kind: "started", step: 0, time: 0, values: { facts: { device_kind: "cuda" } } });

  assert.deepEqual([onCpu, tileLabel(series, describeMetric("perf/memory_gib"))], ["Host memory", "GPU memory"]);
  assert.equal(tileLabel(series, describeMetric("val/loss")), "Eval loss");
});

test("the best validation is told where there are several", () => {
  const rows = [[1, 0.5], [2, 0.3], [3, null]];

  assert.equal(seriesOf({ columns: [], rows: [] }, { columns: ["step", "val/loss"], rows }).best, 0.3);
  assert.equal(seriesOf({ columns: [], rows: [] }, { columns: ["step", "val/loss"], rows: rows.slice(0, 1) }).best, null);
});

test("the time of a run counts from its start or its resume", () => {
  const series = seriesOf({ columns: [], rows: [] }), status = { active: false, updated_at: 700, created_at: 1 };
  const at = (step) => ({ kind: "started", step, time: 100, values: {} });

  series.marks.push(at(0));
  const whole = elapsedText(series, status);
  series.marks.push({ ...at(50), time: 640 });

  assert.deepEqual([whole, elapsedText(series, status)], ["took 10 min", "60 s since the resume"]);
});

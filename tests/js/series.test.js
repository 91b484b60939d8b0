import assert from "node:assert/strict";
import test from "node:test";
import { Series, Table, smooth } from "../../webui/static/js/charts/series.js";

function answer(values) {
  return { reset: false, steps: { columns: [], rows: [] }, validations: { columns: [], rows: [] }, marks: [],
    cursor: "1", status: { steps_per_epoch: 10 }, server_time: Date.now() / 1000, ...values };
}

test("a column that starts late is empty before, and one that ends is empty after", () => {
  const table = new Table();

  table.append({ columns: ["step", "a"], rows: [[1, 10]] });
  table.append({ columns: ["step", "b"], rows: [[2, 20], [3]] });

  assert.deepEqual(table.columns, { step: [1, 2, 3], a: [10, null, null], b: [null, 20, null] });
  assert.equal(table.last("b"), 20);
  assert.deepEqual(table.get("c"), []);
});

test("long columns are thinned, but keep the ends, spikes and rows without a loss", () => {
  const table = new Table();
  const rows = Array.from({ length: 10001 }, (_, step) => [step, step === 5003 ? 99 : step === 7001 ? null : 1, step]);

  for (let i = 0; i < rows.length; i += 1000) {
    table.append({ columns: ["step", "train/loss", "other"], rows: rows.slice(i, i + 1000) });
  }

  const steps = table.get("step");
  assert.ok(table.count <= 4000 && table.count > 1000);
  assert.deepEqual([steps[0], steps.at(-1)], [0, 10000]);
  assert.ok(steps.includes(5003) && steps.includes(7001));
  assert.deepEqual(steps, [...steps].sort((a, b) => a - b));
  assert.deepEqual(table.get("other"), steps);
});

test("a smoothed line starts at its first value and is not pulled to zero", () => {
  assert.deepEqual(smooth([4, 4, null, 4], 0.9).map((value) => value && Number(value.toFixed(9))), [4, 4, null, 4]);
  assert.deepEqual(smooth([1, 3], 0), [1, 3]);
  assert.ok(Math.abs(smooth([0, 1], 0.5)[1] - 2 / 3) < 1e-12);
});

test("two runs are aligned at their first step, whatever the clock said", () => {
  const [one, two] = [new Series("one"), new Series("two")];
  one.take(answer({ steps: { columns: ["step", "time"], rows: [[1, 1000], [2, 1005]] } }));
  two.take(answer({ steps: { columns: ["step", "time"], rows: [[1, 7000], [3, 7005]] } }));

  assert.deepEqual(one.places("time", one.steps), [0, 5]);
  assert.deepEqual(two.places("time", two.steps), [0, 5]);
  assert.deepEqual(two.places("step", two.steps), [1, 3]);
  assert.deepEqual(two.places("epoch", two.steps), [0.1, 0.3]);
});

test("marks are placed on the axis of the steps", () => {
  const series = new Series("one");
  series.take(answer({ steps: { columns: ["step", "time"], rows: [[1, 1000]] } }));

  const places = ["step", "time", "epoch"].map((over) => series.place(over, { step: 20, time: 1090 }));

  assert.deepEqual(places, [20, 90, 2]);
});

test("a range of the time axis becomes the steps inside", () => {
  const series = new Series("one");
  series.take(answer({ steps: { columns: ["step", "time"], rows: [[1, 100], [2, 110], [3, 120], [4, 130]] } }));

  assert.deepEqual(series.stepsWithin("time", [5, 25]), [2, 3]);
  assert.equal(series.stepsWithin("time", [500, 600]), null);
});

test("an answer that starts again replaces what was read", () => {
  const series = new Series("one");
  series.take(answer({ steps: { columns: ["step"], rows: [[1], [2]] }, marks: [{ kind: "started", step: 0 }] }));

  series.take(answer({ reset: true, steps: { columns: ["step"], rows: [[1]] } }));

  assert.equal(series.steps.count, 1);
  assert.equal(series.started, null);
});

test("memory of the host is shown only beside that of a GPU", () => {
  const series = new Series("one");
  const steps = { columns: ["step", "perf/memory_gib", "perf/host_memory_gib"], rows: [[1, 2, 3]] };
  series.take(answer({ steps }));

  const onCpu = series.shows("perf/host_memory_gib");
  series.take(answer({ marks: [{ kind: "started", values: { facts: { device_kind: "cuda" } } }] }));

  assert.deepEqual([onCpu, series.shows("perf/host_memory_gib")], [false, true]);
  assert.equal(series.shows("perf/temperature_c"), false);
  assert.equal(series.shows("val/loss"), true);
});

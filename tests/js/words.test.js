import assert from "node:assert/strict";
import test from "node:test";
import { differingNames, flatten } from "../../webui/static/js/charts/compare.js";
import { axisMarks, describeMark, isRepeated } from "../../webui/static/js/charts/history.js";
import { Series } from "../../webui/static/js/charts/series.js";
import { percentOf, progressWords } from "../../webui/static/js/tabs/race.js";
import { cuttingWords } from "../../webui/static/js/tabs/segmentation.js";
import { rateCurves } from "../../webui/static/js/tabs/trials.js";

test("settings are compared by their dotted names", () => {
  const one = flatten({ lr: 0.1, optimizations: { compile: {}, lora: { rank: 8 } }, note: "" });
  const two = flatten({ lr: 0.1, optimizations: { lora: { rank: 4 } }, note: "" });

  assert.deepEqual(one, { lr: "0.1", "optimizations.compile": "on", "optimizations.lora.rank": "8", note: "(empty)" });
  assert.deepEqual(differingNames([one, two]), ["optimizations.compile", "optimizations.lora.rank"]);
});

test("marks are told in sentences", () => {
  const told = [["started", 0, {}], ["started", 40, {}], ["checkpoint", 9, { size_bytes: 5 * 2 ** 20, best: true }],
    ["plan", 9, { last_step: 80 }], ["finished", 9, { outcome: "stopped", reason: "By you." }]]
    .map(([kind, step, values]) => describeMark({ kind, step, time: 0, values }));

  assert.deepEqual(told, ["Training started.", "Resumed from step 40.", "Best checkpoint so far saved, 5 MiB.",
    "The run now ends at step 80.", "Stopped and saved. By you."]);
});

test("a resume does not repeat the notices of before", () => {
  const series = new Series("one"), notice = { kind: "notice", time: 0, values: { text: "Full.", level: "warning" } };
  const [before, after] = [{ ...notice, step: 5 }, { ...notice, step: 40 }];
  series.marks.push(before, { kind: "started", step: 40, time: 0, values: {} }, after);

  assert.deepEqual([before, after].map((mark) => isRepeated(mark, series)), [false, true]);
  assert.deepEqual(axisMarks(series, "step").map((mark) => mark.x), [40, 5]);
});

test("a race counts the part of the run under way", () => {
  const race = { state: "running", done: 3, total: 10, steps: 100,
    running: { entrant: "lion", value: 1e-4, seed: 1, what: "race", step: 50, steps: 100 } };

  assert.equal(percentOf(race), 35);
  assert.equal(progressWords(race), "3 of 10 runs   -   lion 1e-4, seed 1: race   -   step 50 of 100");
  assert.match(progressWords({ ...race, steps: null }), /^3 of at least 10 runs/);
});

test("cutting says what it does, and what it made", () => {
  const found = { clips: 12, clips_s: 90, recordings_s: 120, without_text: 2, faults: [] };

  assert.equal(cuttingWords({ state: "running", phase: "cut", done: 1, total: 3 }), "Cut 1 of 3 recordings.");
  assert.equal(cuttingWords({ state: "done", found }), "12 clips, 1.5 of 2.0 minutes; 2 have no text yet.");
  assert.equal(cuttingWords({ state: "failed", found: null, problem: "" }), "Cutting was stopped. Cut again to continue.");
});

test("rates that only made things worse are not drawn", () => {
  const [lines, marks] = rateCurves({ rates: [1e-4, 1e-3, 1e-2], changes: [-0.1, -0.5, 40], smooth: [-0.1, -0.4, 30],
    suggestion: 1e-3, lost: null });

  assert.deepEqual(lines[0].y, [-0.1, -0.5, null]);
  assert.deepEqual(marks.map((mark) => mark.x), [-3]);
});

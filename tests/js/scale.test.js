import assert from "node:assert/strict";
import test from "node:test";
import { PAD, fit, logTicks, measure, nearest, outline, pinched, ticks, visible }
  from "../../webui/static/js/charts/scale.js";

const BOX = { width: 1000 + PAD.left + PAD.right, height: 200 + PAD.top + PAD.bottom };

function line(y, x = y.map((_, i) => i), kind = "line") {
  return { label: "", colour: "", kind, x, y };
}

test("ticks are round numbers inside the axis", () => {
  assert.deepEqual(ticks(0, 1, 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(ticks(0.7, 3.2, 3), [1, 2, 3]);
  assert.deepEqual(ticks(-3, 3, 3), [-2, 0, 2]);
});

test("ticks of a logarithmic axis get closer where it is short", () => {
  assert.deepEqual(logTicks(-3, 1).map((value) => Math.log10(value)), [-3, -2, -1, 0, 1]);
  assert.deepEqual(logTicks(0, 0.5), [1, 1.5, 2, 3]);
});

test("the nearest point is found at the ends and between two", () => {
  const x = [0, 10, 20];

  assert.deepEqual([-5, 4, 6, 99].map((value) => nearest(x, value)), [0, 0, 1, 2]);
  assert.equal(nearest([], 1), -1);
});

test("only the visible part of a line is drawn, with a point on each side", () => {
  assert.deepEqual(visible([0, 1, 2, 3, 4, 5, 6], 2.5, 3.5), [2, 6]);
  assert.deepEqual(visible([0, 1, 2], -10, 10), [0, 3]);
});

test("of many points on a pixel, those at its ends and edges are drawn", () => {
  const y = Array.from({ length: 100000 }, (_, i) => i === 50021 ? 9 : i === 50020 ? -9 : i % 2);
  const frame = fit({ x0: 0, x1: y.length - 1, low: -9, high: 9, positive: 1 }, BOX, false);

  const drawn = outline(line(y), frame);

  assert.ok(drawn.length <= 4 * 1001 && drawn.length > 1000);
  assert.deepEqual([drawn[0], drawn.at(-1)], [0, 99999]);
  assert.ok(drawn.includes(50020) && drawn.includes(50021));
  assert.deepEqual(drawn, [...drawn].sort((a, b) => a - b));
  assert.deepEqual(outline(line([1, null, 3]), { ...frame, x0: 0, x1: 2 }), [0, 1, 2]);
});

test("ranges are those of the values inside the zoom", () => {
  const lines = [line([1, 50, 2, null, 3])];

  assert.deepEqual(measure(lines, null, false), { x0: 0, x1: 4, low: 1, high: 50, positive: 1 });
  assert.deepEqual(measure(lines, [2, 4], false), { x0: 2, x1: 4, low: 2, high: 3, positive: 2 });
  assert.equal(measure([line([])], null, false), null);
  assert.equal(measure(lines, [2.9, 3.1], false), null);
});

test("ignoring spikes leaves out the highest and the lowest hundredth, and faint lines", () => {
  const values = Array.from({ length: 200 }, (_, i) => i === 100 ? 1e6 : 1 + i / 1000);
  const lines = [line(values), line(values.map((value) => value * 100), undefined, "faint")];

  assert.ok(measure(lines, null, true).high < 1.3);
  assert.equal(measure(lines, null, false).high, 1e8);
});

test("pixels and values are mapped to each other", () => {
  const frame = fit({ x0: 10, x1: 20, low: 1, high: 2, positive: 1 }, BOX, false);

  assert.deepEqual([frame.px(10), frame.px(20)], [PAD.left, PAD.left + 1000]);
  assert.equal(frame.toX(frame.px(13)), 13);
  assert.ok(frame.py(2) > PAD.top && frame.py(1) < PAD.top + 200);
});

test("the axis starts at zero where that costs little height", () => {
  const of = (low, high) => fit({ x0: 0, x1: 1, low, high, positive: low }, BOX, false).low;

  assert.equal(of(1, 10), 0);
  assert.ok(of(9, 10) > 8);
});

test("a logarithmic axis needs a positive value", () => {
  assert.equal(fit({ x0: 0, x1: 1, low: -2, high: -1, positive: Infinity }, BOX, true).log, false);
  assert.equal(fit({ x0: 0, x1: 1, low: 0, high: 100, positive: 0.01 }, BOX, true).log, true);
});

test("what is under two fingers stays under them", () => {
  const frame = fit({ x0: 0, x1: 100, low: 0, high: 1, positive: 1 }, BOX, false);
  const [from, to] = [[PAD.left + 400, PAD.left + 600], [PAD.left + 300, PAD.left + 700]];

  const [x0, x1] = pinched(frame, from, to);

  const zoomed = fit({ x0, x1, low: 0, high: 1, positive: 1 }, BOX, false);
  assert.deepEqual(to.map((pixel) => zoomed.toX(pixel)), from.map((pixel) => frame.toX(pixel)));
  assert.ok(Math.abs(x1 - x0 - 50) < 1e-9);
  assert.equal(pinched(frame, from, [300, 300]), null);
  assert.equal(pinched(frame, from, [500, 300]), null);
});

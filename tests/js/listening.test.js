import assert from "node:assert/strict";
import test from "node:test";
import { melSpectrogram } from "../../webui/static/js/charts/spectrogram.js";
import { PairQueue, pairsOf, verdict } from "../../webui/static/js/tabs/ballot.js";
import { completeWav } from "../../webui/static/js/tabs/speech.js";

const TAKES = ["base", "100", "200"].flatMap((entry) => ["Hello.", "Bye."].map((text) =>
  ({ id: `${entry}-${text}`, entry, text, speaker: "" })));

test("pairs are of one sentence by two voices", () => {
  const pairs = pairsOf([...TAKES, { ...TAKES[0], id: "again" }]);

  assert.equal(pairsOf(TAKES).length, 6);
  assert.ok(pairs.every(([one, two]) => one.text === two.text && one.entry !== two.entry));
});

test("every pair is asked once before any is asked again", () => {
  const queue = new PairQueue(), pairs = pairsOf(TAKES);
  const key = (pair) => pair.map((take) => take.id).sort().join();

  const asked = Array.from({ length: 12 }, () => key(queue.next(pairs)));

  assert.equal(new Set(asked.slice(0, 6)).size, 6);
  assert.equal(new Set(asked.slice(6)).size, 6);
});

test("chance decides which voice is A", () => {
  const [pair] = pairsOf(TAKES);

  assert.deepEqual(new PairQueue(() => 0).next([pair]), pair);
  assert.deepEqual(new PairQueue(() => 0.99).next([pair]), [pair[1], pair[0]]);
});

test("a voice is preferred only if its interval lies above the next one's", () => {
  const name = (entry) => "step " + entry;

  assert.equal(verdict([{ name: "2", low: 0.6 }, { name: "1", high: 0.5 }], name), "step 2 is preferred.");
  assert.match(verdict([{ name: "2", low: 0.4 }, { name: "1", high: 0.5 }], name), /^No clear winner yet/);
  assert.equal(verdict([{ name: "2", low: 0.4 }], name), "");
});

test("the replayed file says how long it is", () => {
  const wave = completeWav([new Uint8Array(44), new Uint8Array(10), new Uint8Array(6)]);
  const view = new DataView(wave.buffer);

  assert.deepEqual([wave.length, view.getUint32(4, true), view.getUint32(40, true)], [60, 52, 16]);
});

test("a tone is brightest at its own frequency", () => {
  const hz = 1000, samples = Float32Array.from({ length: 4096 }, (_, i) => Math.sin(2 * Math.PI * hz * i / 22050));
  const toMel = (value) => 2595 * Math.log10(1 + value / 700);

  const { mel, columns } = melSpectrogram(samples);

  const column = [...mel.slice(0, 80)], brightest = column.indexOf(Math.max(...column));
  assert.equal(columns, 13);
  assert.ok(Math.abs(brightest - (81 * toMel(hz) / toMel(8000) - 1)) <= 1);
});

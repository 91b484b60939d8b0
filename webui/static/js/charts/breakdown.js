/* Step time breakdown: one stacked bar of the parts of a step, and a sentence about the bottleneck. */
import { h } from "../base/dom.js";
import { number } from "../base/format.js";
import { setText } from "../base/translations.js";
import { COLOURS } from "./chart.js";
import { BREAKDOWN, DATA_WAIT, OPTIMIZER, S_PER_STEP, metricsOf } from "./metrics.js";

const STEPS = 100;  // Newest steps to take medians of; chosen by hand.
const MUCH = 0.25;  // A part above this share is called a bottleneck; chosen by hand.
const REST = "rest";
/** Waiting is drawn in the colour of warnings; what no metric tells, in grey. */
const [FIRST, SECOND, ...OTHERS] = COLOURS;

/** The parts of a step in the order of the table, and the rest of it. */
function partsOfStep() {
  const colours = [SECOND, FIRST, ...OTHERS];
  const parts = metricsOf(BREAKDOWN).map(({ name, label }, i) => ({ name, label, colour: colours[i % colours.length] }));
  return [...parts, { name: REST, label: "Other", colour: "--t-quiet" }];
}

export class Breakdown {
  constructor() {
    this.parts = partsOfStep().map(({ name, label, colour }) => {
      const style = `background: var(${colour})`, words = h("em");
      return { name, piece: h("i", { style }), words, item: h("span", {}, h("i", { style }), h("b", {}, label), words) };
    });
    this.bar = h("div", { class: "parts-bar", role: "img" }, this.parts.map((part) => part.piece));
    this.words = h("p", { class: "parts-words", id: "live-culprit" });
    this.element = h("section", { class: "parts", id: "live-breakdown", hidden: true },
      h("div", { class: "parts-head" }, h("b", { class: "chart-title" }, "Step time breakdown"),
        h("div", { class: "legend" }, this.parts.map((part) => part.item))), this.bar, this.words);
  }

  /** Show the medians of the newest steps; hidden if the device does not report times. @param {Series} series */
  show(series) {
    const found = splitStep(series.steps);
    this.element.hidden = !found;
    if (!found) return;
    for (const { name, piece, words } of this.parts) {
      const percent = 100 * found.shares[name];
      piece.style.width = percent.toFixed(2) + "%";
      setText(words, `${percent.toFixed(0)} % (${number(1000 * found.seconds[name], 3)} ms)`);
    }
    const words = bottleneck(found.shares, isRecomputing(series));
    setText(this.words, words);
    this.bar.setAttribute("aria-label", words);
  }
}

/** The median seconds of each part over the newest steps, and their shares of a step. @param {Table} table */
export function splitStep(table) {
  const told = metricsOf(BREAKDOWN).map((metric) => metric.name);
  // The server sends waiting times alone where the device cannot time the parts of a step.
  if (!told.some((name) => name !== DATA_WAIT && table.has(name))) return null;
  const newest = (/** @type {string} */ name) =>
    median(table.get(name).slice(-STEPS).filter((value) => value != null));
  /** @type {Record<string, number>} */
  const seconds = Object.fromEntries(told.map((name) => [name, newest(name)]));
  const sum = Object.values(seconds).reduce((total, value) => total + value, 0);
  const whole = Math.max(newest(S_PER_STEP), sum);
  if (!(whole > 0)) return null;
  seconds[REST] = whole - sum;
  const shares = Object.fromEntries(Object.entries(seconds).map(([name, value]) => [name, value / whole]));
  return { seconds, shares };
}

/** What to do about the longest part that is not the model. @param {Record<string, number>} shares
 * @param {boolean} isRecomputing */
export function bottleneck(shares, isRecomputing) {
  const percent = (/** @type {number} */ share) => `${(100 * share).toFixed(0)} %`;
  if (shares[DATA_WAIT] >= MUCH) {
    return `Waiting for data takes ${percent(shares[DATA_WAIT])} of a step: put the feature cache ` +
      "(TIMBRE_CACHE) on a faster disk, or leave a CPU core free for loading batches.";
  }
  if (shares[OPTIMIZER] >= MUCH) {
    return `The optimizer takes ${percent(shares[OPTIMIZER])} of a step: gradient accumulation runs ` +
      "it less often, and AdamW is the fastest optimizer.";
  }
  if (shares[REST] >= MUCH) {
    return `${percent(shares[REST])} of a step is spent outside the model and the optimizer: ` +
      "gradient clipping, averaged weights and logging. Larger batches reduce this share.";
  }
  const model = 1 - shares[DATA_WAIT] - shares[OPTIMIZER] - shares[REST];
  const words = `The model itself takes ${percent(model)} of a step: there is no bottleneck.`;
  return isRecomputing ? words + " Gradient checkpointing computes its forward pass twice; " +
    "where memory allows, a step without it is shorter." : words;
}

/** @param {Series} series */
function isRecomputing(series) {
  return Boolean(series.started?.values.optimizations?.gradient_checkpointing?.on);
}

/** @param {number[]} values */
export function median(values) {
  if (!values.length) return 0;
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
}

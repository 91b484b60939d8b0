/* Computes and draws the mel spectrogram of an audio file in the browser. */
import { h } from "../base/dom.js";

const RATE = 22050, SIZE = 1024, HOP = 256, BINS = 80, TOP_HZ = 8000, RANGE_DB = 70;
/** From dark to bright (like matplotlib's inferno), so that loudness is readable without color. */
const INK = [[13, 8, 35], [66, 10, 104], [147, 38, 103], [221, 81, 58], [252, 165, 10], [252, 255, 164]];

/** A spectrogram of the audio at a URL, with a cursor at the player's position.
 * @param {string} url @param {HTMLAudioElement} audio @param {string} label */
export function spectrogram(url, audio, label) {
  const canvas = h("canvas", { class: "spectrogram", role: "img",
    "aria-label": "Mel spectrogram of " + label, height: BINS });
  const place = h("i");
  const box = h("div", { class: "spectrogram-box" }, canvas, place);
  draw(url, canvas).catch(() => { box.hidden = true; });
  audio.addEventListener("timeupdate", () => {
    place.style.insetInlineStart = audio.duration ? `${100 * audio.currentTime / audio.duration}%` : "0";
  });
  return box;
}

/** @param {string} url @param {HTMLCanvasElement} canvas */
async function draw(url, canvas) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error("no sound");
  const decoder = new OfflineAudioContext(1, 1, RATE);
  const sound = await decoder.decodeAudioData(await answer.arrayBuffer());
  const { mel, columns } = melSpectrogram(sound.getChannelData(0));
  canvas.width = columns;
  const pen = canvas.getContext("2d"), image = new ImageData(columns, BINS);
  const loudest = mel.reduce((most, level) => Math.max(most, level), -Infinity);
  mel.forEach((value, i) => {
    const level = Math.max(0, 1 + (value - loudest) / RANGE_DB), bin = i % BINS;
    image.data.set(shade(level), 4 * ((BINS - 1 - bin) * columns + (i - bin) / BINS));
  });
  pen?.putImageData(image, 0, 0);
}

/** Levels in dB, column by column, from the lowest to the highest frequency. @param {Float32Array} samples */
export function melSpectrogram(samples) {
  const columns = Math.max(1, Math.floor((samples.length - SIZE) / HOP) + 1);
  const mel = new Float32Array(columns * BINS);
  for (let column = 0; column < columns; column++) {
    const power = spectrum(samples, column * HOP);
    filters().forEach((weights, bin) => {
      let sum = 1e-12;  // Silence has no logarithm; 120 dB below full scale is as good.
      for (const [index, weight] of weights) sum += weight * power[index];
      mel[column * BINS + bin] = 10 * Math.log10(sum);
    });
  }
  return { mel, columns };
}

/** @param {number} level from 0 to 1 */
function shade(level) {
  const at = Math.min(level, 0.999) * (INK.length - 1), low = Math.floor(at), part = at - low;
  return [0, 1, 2].map((i) => INK[low][i] + part * (INK[low + 1][i] - INK[low][i])).concat(255);
}

/** @type {number[][][] | null} */
let bank = null;

/** Triangular filters of equal width on the mel scale, as [index, weight] pairs. */
function filters() {
  if (bank) return bank;
  const toMel = (/** @type {number} */ hz) => 2595 * Math.log10(1 + hz / 700);
  const toHz = (/** @type {number} */ mel) => 700 * (10 ** (mel / 2595) - 1);
  const edges = Array.from({ length: BINS + 2 }, (_, i) => toHz(toMel(TOP_HZ) * i / (BINS + 1)));
  bank = Array.from({ length: BINS }, (_, bin) => {
    const [left, middle, right] = edges.slice(bin, bin + 3), weights = [];
    for (let index = 0; index <= SIZE / 2; index++) {
      const hz = index * RATE / SIZE;
      const weight = Math.min((hz - left) / (middle - left), (right - hz) / (right - middle));
      if (weight > 0) weights.push([index, weight]);
    }
    // The narrowest triangles may lie between two FFT bins; use the nearest bin then.
    return weights.length ? weights : [[Math.round(middle * SIZE / RATE), 1]];
  });
  return bank;
}

const real = new Float64Array(SIZE), imaginary = new Float64Array(SIZE);
const hann = Float64Array.from({ length: SIZE }, (_, i) => 0.5 - 0.5 * Math.cos(2 * Math.PI * i / SIZE));

/** The power spectrum of one Hann-windowed frame, by an iterative radix-2 FFT.
 * @param {Float32Array} samples @param {number} start */
function spectrum(samples, start) {
  const bits = Math.log2(SIZE);
  for (let i = 0; i < SIZE; i++) {
    let turned = 0;
    for (let bit = 0; bit < bits; bit++) turned = (turned << 1) | ((i >> bit) & 1);
    real[turned] = (samples[start + i] || 0) * hann[i];
    imaginary[turned] = 0;
  }
  for (let half = 1; half < SIZE; half *= 2) {
    for (let k = 0; k < half; k++) {
      const angle = -Math.PI * k / half, cos = Math.cos(angle), sin = Math.sin(angle);
      for (let i = k; i < SIZE; i += 2 * half) {
        const j = i + half;
        const re = real[j] * cos - imaginary[j] * sin, im = real[j] * sin + imaginary[j] * cos;
        real[j] = real[i] - re;
        imaginary[j] = imaginary[i] - im;
        real[i] += re;
        imaginary[i] += im;
      }
    }
  }
  const power = new Float64Array(SIZE / 2 + 1);
  for (let i = 0; i <= SIZE / 2; i++) power[i] = real[i] ** 2 + imaginary[i] ** 2;
  return power;
}

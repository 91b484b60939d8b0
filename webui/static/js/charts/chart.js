/* A line chart on a canvas, with a grid, a log scale, a shared hover line and a shared zoom. */
import { translate } from "../base/dictionary.js";
import { h } from "../base/dom.js";
import { number } from "../base/format.js";
import { setText } from "../base/translations.js";
import { listenToChart } from "./chart_input.js";
import { PAD, fit, logTicks, measure, nearest, outline, ticks } from "./scale.js";

export const COLOURS = [1, 2, 3, 4, 5, 6].map((n) => `--t-line-${n}`);

/** State shared by the charts of a panel: the x under the pointer and the zoomed range. */
export class ChartGroup {
  /** @type {Chart[]} */
  charts = [];
  /** @type {number | null} */
  hover = null;
  /** @type {Span | null} */
  zoom = null;
  /** @type {(range: Span | null) => void} */
  onzoom = () => {};

  /** @param {(x: number) => string} [formatX] */
  constructor(formatX = (x) => number(x, 6)) {
    this.formatX = formatX;
    document.addEventListener("timbre-theme", () => this.draw());
  }

  draw() {
    for (const chart of this.charts) chart.draw();
  }

  /** @param {number | null} x */
  setHover(x) {
    this.hover = x;
    this.draw();
  }

  /** @param {Span | null} range */
  setZoom(range) {
    this.zoom = range;
    this.onzoom(range);
    this.draw();
  }
}

export class Chart {
  /** @type {Line[]} */
  lines = [];
  /** @type {AxisMark[]} */
  marks = [];
  /** @type {Frame | null} */
  frame = null;
  /** The x where a drag began and where it is. @type {Span | null} */
  drag = null;

  /** @param {ChartGroup} group @param {ChartOptions} options */
  constructor(group, options) {
    this.group = group;
    this.options = options;
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": options.title || "Chart" });
    this.pen = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.style = getComputedStyle(this.canvas);
    this.title = h("span", { class: "chart-title" }, options.title);
    this.legend = h("div", { class: "legend" });
    this.element = h("figure", { class: "chart " + (options.large ? "large" : "") },
      h("figcaption", {}, this.title, this.legend), this.canvas);
    group.charts.push(this);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    listenToChart(this);
  }

  /** @param {Line[]} lines @param {AxisMark[]} [marks] */
  set(lines, marks = []) {
    this.lines = lines;
    this.marks = marks;
    this.draw();
  }

  draw() {
    const box = this.canvas.getBoundingClientRect(), { pen } = this;
    if (!box.width) return;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) Object.assign(this.canvas, { width: w, height: h });
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, box.width, box.height);
    pen.font = "11px " + (this.style.fontFamily || "sans-serif");
    const range = measure(this.lines, this.group.zoom, Boolean(this.options.clip?.()));
    this.frame = range && fit(range, box, Boolean(this.options.log?.()));
    if (this.frame) this.drawInside(this.frame);
    else {
      pen.fillStyle = this.ink("--t-quiet");
      pen.textAlign = "center";
      pen.fillText(translate("no data yet"), box.width / 2, box.height / 2);
      this.drawLegend(null);
    }
    this.canvas.setAttribute("aria-label", this.describe());
  }

  /** @param {string} name of a CSS variable */
  ink(name) {
    return this.style.getPropertyValue(name).trim();
  }

  /** @param {Frame} f */
  drawInside(f) {
    const { pen } = this;
    this.drawGrid(f);
    this.drawMarks(f);
    pen.save();
    pen.beginPath();
    // A margin, so that dots at the edges are not cut off.
    pen.rect(PAD.left - 4, PAD.top - 2, f.width + 8, f.height + 4);
    pen.clip();
    for (const line of this.lines) this.drawLine(f, line);
    if (this.drag) {
      const [a, b] = this.drag.map(f.px);
      pen.fillStyle = this.ink("--t-grid");
      pen.globalAlpha = 0.5;
      pen.fillRect(Math.min(a, b), PAD.top, Math.abs(b - a), f.height);
    }
    pen.restore();
    const x = this.group.hover, isInside = x != null && x >= f.x0 && x <= f.x1;
    if (isInside) this.drawHover(f, x);
    this.drawLegend(isInside ? x : null);
  }

  /** @param {Frame} f */
  drawGrid(f) {
    const { pen } = this;
    pen.lineWidth = 1;
    pen.strokeStyle = this.ink("--t-grid");
    pen.fillStyle = this.ink("--t-quiet");
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const value of f.log ? logTicks(f.low, f.high) : ticks(f.low, f.high, f.height / 36)) {
      const y = Math.round(f.py(value)) + 0.5;
      this.stroke([PAD.left, y], [PAD.left + f.width, y]);
      pen.fillText(number(value, 3), PAD.left - 6, y);
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const value of ticks(f.x0, f.x1, Math.max(3, f.width / 90))) {
      pen.fillText(this.group.formatX(value), f.px(value), PAD.top + f.height + 6);
    }
  }

  /** @param {[number, number]} from @param {[number, number]} to */
  stroke(from, to) {
    this.pen.beginPath();
    this.pen.moveTo(...from);
    this.pen.lineTo(...to);
    this.pen.stroke();
  }

  /** @param {number} x @param {number} y @param {number} radius */
  dot(x, y, radius) {
    this.pen.beginPath();
    this.pen.arc(x, y, radius, 0, 7);
    this.pen.fill();
  }

  /** @param {Frame} f @param {Line} line */
  drawLine(f, line) {
    const { x, y, kind, colour, dash } = line, { pen } = this, drawn = outline(line, f);
    pen.strokeStyle = pen.fillStyle = this.ink(colour);
    pen.globalAlpha = kind === "faint" ? 0.42 : 1;
    pen.lineWidth = kind === "faint" ? 1 : 2;
    pen.setLineDash(dash || []);
    pen.beginPath();
    let isDown = false;
    for (const i of drawn) {
      const value = y[i];
      if (value != null && isDown) pen.lineTo(f.px(x[i]), f.py(value));
      else if (value != null) pen.moveTo(f.px(x[i]), f.py(value));
      isDown = value != null;
    }
    pen.stroke();
    pen.setLineDash([]);
    for (const i of kind === "dots" ? drawn : []) {
      const value = y[i];
      if (value != null) this.dot(f.px(x[i]), f.py(value), 3.5);
    }
    pen.globalAlpha = 1;
  }

  /** @param {Frame} f */
  drawMarks(f) {
    const { pen } = this, base = PAD.top + f.height;
    for (const mark of this.marks.filter(({ x }) => x >= f.x0 && x <= f.x1)) {
      const x = f.px(mark.x);
      pen.fillStyle = pen.strokeStyle = this.ink(mark.colour);
      pen.globalAlpha = 0.35;
      pen.setLineDash([2, 4]);
      this.stroke([x, PAD.top], [x, base]);
      pen.setLineDash([]);
      pen.globalAlpha = 1;
      this.dot(x, base, mark.strong ? 4.5 : 3);
    }
  }

  /** A line under the pointer, and the words of the marks near it. @param {Frame} f @param {number} x */
  drawHover(f, x) {
    const { pen } = this, reach = 7;
    const near = this.marks.filter((mark) => mark.words && Math.abs(f.px(mark.x) - f.px(x)) < reach);
    near.slice(-4).forEach(({ x: at, colour, words = "" }, i) => {
      const shown = words.length > 110 ? words.slice(0, 108) + " ..." : words;
      const width = pen.measureText(shown).width + 12, top = PAD.top + 4 + 19 * i;
      const left = Math.max(PAD.left, Math.min(f.px(at) + 8, PAD.left + f.width - width));
      pen.fillStyle = this.ink("--t-panel");
      pen.fillRect(left, top, width, 18);
      pen.strokeStyle = this.ink(colour);
      pen.strokeRect(left + 0.5, top + 0.5, width - 1, 17);
      pen.fillStyle = this.ink("--t-text");
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      pen.fillText(shown, left + 6, top + 9.5);
    });
    pen.strokeStyle = this.ink("--t-quiet");
    pen.lineWidth = 1;
    this.stroke([f.px(x), PAD.top], [f.px(x), PAD.top + f.height]);
  }

  /** List every line with its value under the pointer, or its latest value. @param {number | null} x */
  drawLegend(x) {
    const shown = this.lines.filter((line) => line.kind !== "faint" || this.lines.length === 1);
    while (this.legend.children.length > shown.length) this.legend.lastChild?.remove();
    shown.forEach((line, i) => {
      if (!this.legend.children[i]) this.legend.append(h("span", {}, h("i"), h("b"), h("em")));
      const [colour, label, words] = this.legend.children[i].children;
      /** @type {HTMLElement} */ (colour).style.background = `var(${line.colour})`;
      setText(label, line.label);
      const at = x == null ? line.x.length - 1 : nearest(line.x, x);
      const value = at < 0 ? "" : number(line.y[at]);
      setText(words, x == null || at < 0 ? value : `${value} at ${this.group.formatX(line.x[at])}`);
    });
  }

  describe() {
    const line = this.lines.find((item) => item.kind !== "faint") || this.lines[0];
    if (!line?.x.length) return this.options.title + ": no data yet";
    const last = line.y.length - 1, now = Number(line.y[last]), earlier = Number(line.y[Math.floor(last * 0.8)]);
    const trend = now < earlier ? "falling" : now > earlier ? "rising" : "flat";
    return `${this.options.title} ${number(line.y[last])} at ${this.group.formatX(line.x[last])}, ${trend}`;
  }
}

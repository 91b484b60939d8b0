/* A line chart on a canvas, with a grid, a log scale, a shared hover line and zoom by dragging. */
(function () {
  "use strict";
  const t = window.timbre;
  const PAD = { left: 52, right: 12, top: 8, bottom: 22 };

  /* State shared by the charts of a panel: the x under the pointer and the zoomed range. */
  t.ChartGroup = class {
    constructor() {
      this.charts = [];
      this.hover = null;
      this.zoom = null;
      this.formatX = (x) => t.number(x, 6);
      this.onzoom = () => {};
      document.addEventListener("timbre-theme", () => this.setHover(this.hover));
    }

    setHover(x) {
      this.hover = x;
      for (const chart of this.charts) chart.draw();
    }

    setZoom(range) {
      this.zoom = range;
      this.onzoom(range);
      for (const chart of this.charts) chart.draw();
    }
  };

  t.Chart = class {
    /* options: title, log (function), clip (function), summary (function -> text) */
    constructor(group, options) {
      this.group = group;
      this.options = options;
      this.lines = [];
      this.marks = [];
      this.canvas = t.h("canvas", { tabindex: "0", role: "img", "aria-label": options.title || "Chart" });
      this.legend = t.h("div", { class: "legend" });
      this.element = t.h("figure", { class: "chart " + (options.large ? "large" : "") },
        t.h("figcaption", {}, t.h("span", { class: "chart-title" }, options.title), this.legend),
        this.canvas);
      group.charts.push(this);
      new ResizeObserver(() => this.draw()).observe(this.canvas);
      this.listen();
    }

    /* lines: {label, colour (css variable), x, y, kind: "line" | "faint" | "dots"} */
    set(lines, marks) {
      this.lines = lines;
      this.marks = marks || [];
      this.draw();
    }

    listen() {
      const canvas = this.canvas;
      canvas.addEventListener("pointermove", (event) => {
        const x = this.toX(event.offsetX);
        if (this.dragFrom != null) this.dragTo = x;
        this.group.setHover(x);
      });
      canvas.addEventListener("pointerleave", () => {
        this.dragFrom = this.dragTo = null;
        this.group.setHover(null);
      });
      canvas.addEventListener("pointerdown", (event) => {
        if (event.pointerType === "mouse") this.dragFrom = this.toX(event.offsetX);
      });
      canvas.addEventListener("pointerup", () => {
        const [from, to] = [this.dragFrom, this.dragTo];
        this.dragFrom = this.dragTo = null;
        if (from == null || to == null || !this.frame) return;
        if (Math.abs(to - from) < (this.frame.x1 - this.frame.x0) / 50) return;
        this.group.setZoom([Math.min(from, to), Math.max(from, to)]);
      });
      canvas.addEventListener("dblclick", () => this.group.setZoom(null));
      canvas.addEventListener("keydown", (event) => this.press(event));
    }

    press(event) {
      if (event.key === "Escape") this.group.setZoom(null);
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      if (!this.frame) return;
      const { x0, x1 } = this.frame;
      const from = this.group.hover == null ? x1 : this.group.hover;
      const move = ((x1 - x0) / 100) * (event.key === "ArrowLeft" ? -1 : 1);
      this.group.setHover(Math.min(x1, Math.max(x0, from + move)));
      event.preventDefault();
    }

    toX(pixel) {
      if (!this.frame) return null;
      const { x0, x1, width } = this.frame;
      return x0 + ((pixel - PAD.left) / Math.max(1, width)) * (x1 - x0);
    }

    measure() {
      let x0 = Infinity, x1 = -Infinity;
      for (const line of this.lines) {
        if (!line.x.length) continue;
        x0 = Math.min(x0, line.x[0]);
        x1 = Math.max(x1, line.x[line.x.length - 1]);
      }
      if (this.group.zoom) [x0, x1] = this.group.zoom;
      if (!isFinite(x0)) return null;
      if (x0 === x1) x1 = x0 + 1;
      const clip = this.options.clip && this.options.clip();
      let low = Infinity, high = -Infinity, positive = Infinity;
      const seen = [];
      for (const line of this.lines) {
        if (line.kind === "faint" && clip && this.lines.length > 1) continue;
        for (let i = 0; i < line.x.length; i++) {
          const y = line.y[i];
          if (y == null || line.x[i] < x0 || line.x[i] > x1) continue;
          if (y < low) low = y;
          if (y > high) high = y;
          if (y > 0 && y < positive) positive = y;
          if (clip) seen.push(y);
        }
      }
      if (low > high) return null;
      if (clip && seen.length > 50) {
        seen.sort((a, b) => a - b);
        low = seen[Math.floor(seen.length * 0.01)];
        high = seen[Math.ceil(seen.length * 0.99) - 1];
      }
      return { x0, x1, low, high, positive };
    }

    draw() {
      const box = this.canvas.getBoundingClientRect();
      if (!box.width) return;
      const ratio = window.devicePixelRatio || 1;
      const [w, h] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
      if (this.canvas.width !== w || this.canvas.height !== h) {
        this.canvas.width = w;
        this.canvas.height = h;
      }
      const pen = this.canvas.getContext("2d");
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, box.width, box.height);
      const style = getComputedStyle(this.element);
      const range = this.measure();
      this.frame = range && this.scale(range, box);
      this.ink = (name) => style.getPropertyValue(name).trim();
      pen.font = "11px " + (style.fontFamily || "sans-serif");
      if (!this.frame) {
        pen.fillStyle = this.ink("--t-quiet");
        pen.textAlign = "center";
        pen.fillText(t.translate("no data yet"), box.width / 2, box.height / 2);
        this.drawLegend(null);
        this.canvas.setAttribute("aria-label", this.describe());
        return;
      }
      this.drawGrid(pen);
      this.drawMarks(pen);
      pen.save();
      pen.beginPath();
      // A margin, so that dots at the edges are not cut off.
      pen.rect(PAD.left - 4, PAD.top - 2, this.frame.width + 8, this.frame.height + 4);
      pen.clip();
      for (const line of this.lines) this.drawLine(pen, line);
      this.drawDrag(pen);
      pen.restore();
      this.drawHover(pen);
      this.canvas.setAttribute("aria-label", this.describe());
    }

    scale(range, box) {
      const log = this.options.log && this.options.log() && range.positive < Infinity;
      let [low, high] = [range.low, range.high];
      if (log) {
        low = Math.log10(Math.max(low, range.positive));
        high = Math.log10(high);
      } else if (low > 0 && low < 0.35 * high) {
        low = 0;
      }
      const space = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
      if (low !== 0 || log) low -= space;
      high += space;
      const width = Math.max(10, box.width - PAD.left - PAD.right);
      const height = Math.max(10, box.height - PAD.top - PAD.bottom);
      const { x0, x1 } = range;
      return {
        x0, x1, low, high, log, width, height,
        px: (x) => PAD.left + ((x - x0) / (x1 - x0)) * width,
        py: (y) => {
          const value = log ? Math.log10(Math.max(y, range.positive)) : y;
          return PAD.top + (1 - (value - low) / (high - low)) * height;
        },
      };
    }

    drawGrid(pen) {
      const f = this.frame;
      pen.lineWidth = 1;
      pen.strokeStyle = this.ink("--t-grid");
      pen.fillStyle = this.ink("--t-quiet");
      pen.textBaseline = "middle";
      pen.textAlign = "right";
      for (const value of f.log ? logTicks(f.low, f.high) : ticks(f.low, f.high, f.height / 36)) {
        const y = Math.round(f.py(value)) + 0.5;
        pen.beginPath();
        pen.moveTo(PAD.left, y);
        pen.lineTo(PAD.left + f.width, y);
        pen.stroke();
        pen.fillText(t.number(value, 3), PAD.left - 6, y);
      }
      pen.textAlign = "center";
      pen.textBaseline = "top";
      for (const value of ticks(f.x0, f.x1, Math.max(3, f.width / 90))) {
        pen.fillText(this.group.formatX(value), f.px(value), PAD.top + f.height + 6);
      }
    }

    drawLine(pen, line) {
      const f = this.frame;
      pen.strokeStyle = pen.fillStyle = this.ink(line.colour);
      pen.globalAlpha = line.kind === "faint" ? 0.42 : 1;
      pen.lineWidth = line.kind === "faint" ? 1 : 2;
      pen.setLineDash(line.dash || []);
      pen.beginPath();
      let isDown = false;
      for (let i = 0; i < line.x.length; i++) {
        if (line.y[i] == null) { isDown = false; continue; }
        const x = f.px(line.x[i]), y = f.py(line.y[i]);
        if (isDown) pen.lineTo(x, y);
        else pen.moveTo(x, y);
        isDown = true;
      }
      pen.stroke();
      pen.setLineDash([]);
      if (line.kind === "dots") {
        for (let i = 0; i < line.x.length; i++) {
          if (line.y[i] == null) continue;
          pen.beginPath();
          pen.arc(f.px(line.x[i]), f.py(line.y[i]), 3.5, 0, 7);
          pen.fill();
        }
      }
      pen.globalAlpha = 1;
    }

    drawMarks(pen) {
      const f = this.frame, base = PAD.top + f.height;
      for (const mark of this.marks) {
        if (mark.x < f.x0 || mark.x > f.x1) continue;
        const x = f.px(mark.x);
        pen.fillStyle = pen.strokeStyle = this.ink(mark.colour);
        pen.globalAlpha = 0.35;
        pen.setLineDash([2, 4]);
        pen.beginPath();
        pen.moveTo(x, PAD.top);
        pen.lineTo(x, base);
        pen.stroke();
        pen.setLineDash([]);
        pen.globalAlpha = 1;
        pen.beginPath();
        pen.arc(x, base, mark.strong ? 4.5 : 3, 0, 7);
        pen.fill();
      }
    }

    drawDrag(pen) {
      if (this.dragFrom == null || this.dragTo == null) return;
      const a = this.frame.px(this.dragFrom), b = this.frame.px(this.dragTo);
      pen.fillStyle = this.ink("--t-grid");
      pen.globalAlpha = 0.5;
      pen.fillRect(Math.min(a, b), PAD.top, Math.abs(b - a), this.frame.height);
      pen.globalAlpha = 1;
    }

    drawHover(pen) {
      const x = this.group.hover, f = this.frame;
      if (x == null || x < f.x0 || x > f.x1) return this.drawLegend(null);
      this.drawWords(pen, x);
      pen.strokeStyle = this.ink("--t-quiet");
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(f.px(x), PAD.top);
      pen.lineTo(f.px(x), PAD.top + f.height);
      pen.stroke();
      this.drawLegend(x);
    }

    /* Label the marks near the pointer. */
    drawWords(pen, x) {
      const f = this.frame, reach = 7;
      const near = this.marks.filter((mark) => mark.words && Math.abs(f.px(mark.x) - f.px(x)) < reach);
      near.slice(-4).forEach((mark, i) => {
        const words = mark.words.length > 110 ? mark.words.slice(0, 108) + " ..." : mark.words;
        const width = pen.measureText(words).width + 12, y = PAD.top + 4 + 19 * i;
        const left = Math.max(PAD.left, Math.min(f.px(mark.x) + 8, PAD.left + f.width - width));
        pen.fillStyle = this.ink("--t-panel");
        pen.fillRect(left, y, width, 18);
        pen.strokeStyle = this.ink(mark.colour);
        pen.strokeRect(left + 0.5, y + 0.5, width - 1, 17);
        pen.fillStyle = this.ink("--t-text");
        pen.textAlign = "left";
        pen.textBaseline = "middle";
        pen.fillText(words, left + 6, y + 9.5);
      });
    }

    /* List every line with its value under the pointer, or its latest value. */
    drawLegend(x) {
      const shown = this.lines.filter((line) => line.kind !== "faint" || this.lines.length === 1);
      while (this.legend.children.length > shown.length) this.legend.lastChild.remove();
      shown.forEach((line, i) => {
        let item = this.legend.children[i];
        if (!item) {
          item = t.h("span", {}, t.h("i", {}), t.h("b", {}), t.h("em", {}));
          this.legend.append(item);
        }
        item.children[0].style.background = `var(${line.colour})`;
        t.setText(item.children[1], line.label);
        const at = x == null ? line.x.length - 1 : nearest(line.x, x);
        const value = at < 0 ? "" : t.number(line.y[at]);
        t.setText(item.children[2], x == null || at < 0
          ? value : `${value} at ${this.group.formatX(line.x[at])}`);
      });
    }

    describe() {
      const line = this.lines.find((item) => item.kind !== "faint") || this.lines[0];
      if (!line || !line.x.length) return this.options.title + ": no data yet";
      const last = line.y.length - 1, earlier = line.y[Math.floor(last * 0.8)];
      const trend = line.y[last] < earlier ? "falling" : line.y[last] > earlier ? "rising" : "flat";
      const where = this.group.formatX(line.x[last]);
      return `${this.options.title} ${t.number(line.y[last])} at ${where}, ${trend}`;
    }
  };

  /* A small line without axes, for a tile. */
  t.sparkline = function (canvas, values, colour) {
    const box = canvas.getBoundingClientRect();
    if (!box.width) return;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(box.width * ratio);
    canvas.height = Math.round(box.height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const known = values.filter((value) => value != null);
    if (known.length < 2) return;
    const low = Math.min(...known), span = Math.max(...known) - low || 1;
    pen.strokeStyle = getComputedStyle(canvas).getPropertyValue(colour).trim();
    pen.lineWidth = 1.5;
    pen.beginPath();
    values.forEach((value, i) => {
      if (value == null) return;
      const x = 1 + (i / (values.length - 1)) * (box.width - 2);
      pen.lineTo(x, 2 + (1 - (value - low) / span) * (box.height - 4));
    });
    pen.stroke();
  };

  function ticks(low, high, wanted) {
    const raw = (high - low) / Math.max(2, wanted);
    const power = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= raw);
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) {
      found.push(Number((n * step).toPrecision(12)));
    }
    return found;
  }

  function logTicks(low, high) {
    const factors = high - low > 2.5 ? [1] : high - low > 1 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
    const found = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power++) {
      for (const factor of factors) {
        const value = factor * Math.pow(10, power);
        const at = Math.log10(value);
        if (at >= low && at <= high) found.push(value);
      }
    }
    return found;
  }

  function nearest(sorted, x) {
    let low = 0, high = sorted.length - 1;
    if (high < 0) return -1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low > 0 && x - sorted[low - 1] < sorted[low] - x ? low - 1 : low;
  }
})();

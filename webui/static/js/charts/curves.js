/* The lines of metrics, and the controls with which the Live tab and comparisons draw them. */
import { h } from "../base/dom.js";
import { COLOURS } from "./chart.js";
import { describeMetric, isVal } from "./metrics.js";
import { smooth } from "./series.js";

const AXES = [["step", "steps"], ["time", "time"], ["epoch", "epochs"]];

/**
 * The lines of one metric: validations as dots; where the table says so, a smoothed line, with the
 * values themselves behind it.
 * @param {Series} series @param {string} name @param {Look} look @param {Partial<Line>} [style]
 * @param {Table} [table] @returns {Line[]}
 */
export function curve(series, name, look, style, table = series.tableOf(name)) {
  const metric = describeMetric(name), y = table.get(name);
  const line = { label: metric.label, colour: COLOURS[0], x: series.places(look.x, table), y, ...style };
  if (isVal(name)) return [{ dash: [5, 4], ...line, kind: "dots" }];
  if (!metric.smoothed) return [{ ...line, kind: "line" }];
  const bold = { ...line, y: smooth(y, look.smoothing), kind: /** @type {const} */ ("line") };
  return [{ ...line, kind: "faint" }, bold];
}

/** A slider for the smoothing, with its value. @param {Look} look @param {() => void} redraw
 * @param {string} [id] */
export function smoothingSlider(look, redraw, id) {
  const shown = h("output", {}, look.smoothing.toFixed(2));
  const slider = h("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: look.smoothing, id,
    oninput: () => {
      look.smoothing = Number(slider.value);
      shown.textContent = look.smoothing.toFixed(2);
      redraw();
    } });
  return h("label", {}, "Smoothing ", slider, " ", shown);
}

/** A checkbox for one of the switches of a look. @param {string} label @param {"log" | "clip"} name
 * @param {Look} look @param {() => void} redraw */
export function lookCheckbox(label, name, look, redraw) {
  const box = h("input", { type: "checkbox", checked: look[name], onchange: () => {
    look[name] = box.checked;
    redraw();
  } });
  return h("label", {}, box, " " + label);
}

/** Radio buttons for the horizontal axis. @param {string} group @param {Look} look @param {() => void} redraw */
export function axisRadios(group, look, redraw) {
  const radios = AXES.map(([value, label]) => h("label", {}, h("input", { type: "radio", name: group,
    checked: value === look.x, onchange: () => {
      look.x = /** @type {Over} */ (value);
      redraw();
    } }), " " + label));
  return h("span", { class: "radios", role: "radiogroup", "aria-label": "Horizontal axis" }, "X axis: ", radios);
}

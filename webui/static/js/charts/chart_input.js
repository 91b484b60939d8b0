/* Pointers, fingers and keys on a chart: hover, zoom by dragging or with two fingers, and arrow keys. */
import { pinched } from "./scale.js";

const LEAST_DRAG = 1 / 50;  // Share of the width; a shorter drag is a click.

/** @param {import("./chart.js").Chart} chart */
export function listenToChart(chart) {
  const { canvas, group } = chart;
  /** Where each finger touched and where it is, in pixels. @type {Map<number, [number, number]>} */
  const fingers = new Map();
  /** @type {Frame | null} */
  let touched = null;
  // Fingers that move up and down scroll the page; two fingers zoom the chart instead of the page.
  canvas.style.touchAction = "pan-y";
  const lift = (/** @type {PointerEvent} */ event) => fingers.delete(event.pointerId);
  canvas.addEventListener("pointermove", (event) => {
    if (!chart.frame) return;
    const x = chart.frame.toX(event.offsetX), finger = fingers.get(event.pointerId);
    if (chart.drag) chart.drag[1] = x;
    if (finger) finger[1] = event.offsetX;
    const [one, two] = fingers.values();
    const range = two && touched ? pinched(touched, [one[0], two[0]], [one[1], two[1]]) : null;
    if (range) group.setZoom(range);
    else group.setHover(x);
  });
  canvas.addEventListener("pointerleave", (event) => {
    lift(event);
    chart.drag = null;
    group.setHover(null);
  });
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerdown", (event) => {
    if (!chart.frame) return;
    touched = chart.frame;
    const x = touched.toX(event.offsetX);
    if (event.pointerType === "mouse") chart.drag = [x, x];
    else fingers.set(event.pointerId, [event.offsetX, event.offsetX]);
  });
  canvas.addEventListener("pointerup", (event) => {
    lift(event);
    const { drag, frame } = chart;
    chart.drag = null;
    if (!drag || !frame || Math.abs(drag[1] - drag[0]) < (frame.x1 - frame.x0) * LEAST_DRAG) return;
    group.setZoom([Math.min(...drag), Math.max(...drag)]);
  });
  canvas.addEventListener("dblclick", () => group.setZoom(null));
  canvas.addEventListener("keydown", (event) => press(chart, event));
}

/** @param {import("./chart.js").Chart} chart @param {KeyboardEvent} event */
function press({ frame, group }, event) {
  if (event.key === "Escape") group.setZoom(null);
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight" || !frame) return;
  const move = ((frame.x1 - frame.x0) / 100) * (event.key === "ArrowLeft" ? -1 : 1);
  group.setHover(Math.min(frame.x1, Math.max(frame.x0, (group.hover ?? frame.x1) + move)));
  event.preventDefault();
}

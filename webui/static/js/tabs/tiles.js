/* The tiles of the live panel: the latest value of each metric that the table gives a tile. */
import { h } from "../base/dom.js";
import { duration, number } from "../base/format.js";
import { setText } from "../base/translations.js";
import { LR, LR_SCHEDULED, MEMORY, MEMORY_PEAK, MEMORY_RESERVED, METRICS, TEMPERATURE, UTILISATION,
  VAL_LOSS } from "../charts/metrics.js";
import { COLOURS } from "../charts/chart.js";

const DRAWN = 60;  // Newest rows in the small line of a tile; chosen by hand.
const MANY = 9;  // With ten tiles, the last one would be alone in its row.

export class Tiles {
  constructor() {
    this.tiles = METRICS.filter((metric) => metric.tile).map((metric) => {
      const label = h("span", { class: "tile-label" }, metric.label), value = h("strong", {}, "-");
      const words = h("span", { class: "tile-unit" }), canvas = h("canvas");
      return { metric, label, value, words, canvas, element: h("div", { class: "tile" }, label, value, words, canvas) };
    });
    this.element = h("div", { class: "tiles" }, this.tiles.map((tile) => tile.element));
  }

  /** @param {Series} series */
  show(series) {
    for (const { metric, label, value, words, canvas, element } of this.tiles) {
      const table = series.tableOf(metric.name);
      element.hidden = !series.shows(metric.name);
      setText(label, tileLabel(series, metric));
      setText(value, number(table.last(metric.name), metric.digits));
      setText(words, (WORDS[metric.name] || (() => metric.unit))(series));
      drawSparkline(canvas, table.get(metric.name).slice(-DRAWN));
    }
    this.element.classList.toggle("many", this.tiles.filter((tile) => !tile.element.hidden).length > MANY);
  }
}

/** The label of a tile; the memory and the work are those of the device. @param {Series} series
 * @param {Metric} metric */
export function tileLabel(series, { name, label }) {
  if (name === MEMORY) return series.isOnGpu ? "GPU memory" : "Host memory";
  if (name === UTILISATION) return series.isOnGpu ? "GPU utilization" : "CPU utilization";
  if (name === LR && series.steps.has(LR_SCHEDULED)) return "Effective rate";
  return label;
}

/** What stands after the number, for tiles that say more than the unit. @type {Record<string, (series: Series) => string>} */
const WORDS = {
  [VAL_LOSS]: ({ best }) => best == null ? "" : `best ${number(best)}`,
  [LR]: ({ steps }) => steps.last(LR_SCHEDULED) == null ? "" : `scheduled ${number(steps.last(LR_SCHEDULED), 3)}`,
  [UTILISATION]: ({ steps }) => steps.last(TEMPERATURE) == null ? "%" : `%, ${number(steps.last(TEMPERATURE), 3)} \u00b0C`,
  [MEMORY]: (series) => {
    const total = series.facts.memory_total_gib, { steps } = series;
    const [reserved, peak] = [steps.last(MEMORY_RESERVED), steps.last(MEMORY_PEAK)];
    const words = [total ? `of ${number(total, 3)} GiB` : "GiB"];
    if (reserved != null) words.push(`reserved ${number(reserved, 3)}`);
    if (peak != null) words.push(`peak ${number(peak, 3)}`);
    return words.join(", ");
  },
};

/** How long a run has trained. @param {Series} series @param {RunStatus} status */
export function elapsedText({ started, clockSkew }, status) {
  const now = Date.now() / 1000 + clockSkew;
  // Until the process reports its start, count from when the run was created.
  if (!started) return status.active ? duration(now - status.created_at) + " so far" : "";
  const elapsed = duration((status.active ? now : status.updated_at) - started.time);
  if (started.step > 0) return elapsed + " since the resume";
  return status.active ? elapsed + " so far" : "took " + elapsed;
}

/** A small line without axes. @param {HTMLCanvasElement} canvas @param {Values} values */
function drawSparkline(canvas, values) {
  const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  const pen = canvas.getContext("2d");
  if (!box.width || !pen) return;
  canvas.width = Math.round(box.width * ratio);
  canvas.height = Math.round(box.height * ratio);
  pen.scale(ratio, ratio);
  const known = values.filter((value) => value != null);
  if (known.length < 2) return;
  const low = Math.min(...known), span = Math.max(...known) - low || 1;
  pen.strokeStyle = getComputedStyle(canvas).getPropertyValue(COLOURS[0]).trim();
  pen.lineWidth = 1.5;
  pen.beginPath();
  values.forEach((value, i) => {
    if (value == null) return;
    const x = 1 + (i / (values.length - 1)) * (box.width - 2);
    pen.lineTo(x, 2 + (1 - (value - low) / span) * (box.height - 4));
  });
  pen.stroke();
}

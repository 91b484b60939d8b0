/* Draws a second run behind the current one for comparison; reads new rows while it trains. */
import { h, offerChoices } from "../base/dom.js";
import { getRows } from "../base/server.js";
import { curve } from "./curves.js";
import { Series } from "./series.js";

const READ_MS = 3000;
const DASH = [7, 4];

export class Overlay {
  /** @type {Series | null} */
  series = null;
  readAt = 0;

  /** @param {() => void} redraw */
  constructor(redraw) {
    this.redraw = redraw;
    this.picker = h("select", { id: "live-compare", "aria-label": "Compare with another run",
      onchange: () => { this.choose(this.picker.value); } }, h("option", { value: "" }, "none"));
    this.element = h("label", {}, "Compare: ", this.picker);
  }

  /** Offer all other runs; drop the chosen one if it no longer exists.
   * @param {string[]} names @param {string | null} shown */
  offer(names, shown) {
    const others = names.filter((name) => name !== shown);
    offerChoices(this.picker, ["", ...others], ["none", ...others]);
    this.element.hidden = !others.length;
    if (this.series && !others.includes(this.series.run)) this.choose("");
    this.picker.value = this.series ? this.series.run : "";
  }

  /** @param {string} name */
  choose(name) {
    this.series = name ? new Series(name) : null;
    this.picker.value = name;
    this.readAt = 0;
    this.redraw();
    this.readOn();
  }

  /** Read new rows every few seconds, only while that run is training. */
  async readOn() {
    const { series } = this;
    if (!series || Date.now() - this.readAt < READ_MS) return;
    if (series.status && !series.status.active) return;
    this.readAt = Date.now();
    const answer = await getRows(series).catch(() => null);
    if (!answer || series !== this.series) return;
    series.take(answer);
    this.redraw();
  }

  /** The dashed line of a metric of the other run; empty without one.
   * @param {string} name @param {Look} look @param {Partial<Line>} style */
  lines(name, look, style) {
    const { series } = this;
    if (!series?.status || !series.tableOf(name).get(name).length) return [];
    const own = curve(series, name, look).filter((line) => line.kind !== "faint");
    return own.map((line) => ({ ...line, ...style, label: `${series.run} ${style.label || ""}`.trim(), dash: DASH }));
  }
}

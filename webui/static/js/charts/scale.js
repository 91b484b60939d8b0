/* The arithmetic of a chart: ranges, ticks, the mapping to pixels and the nearest point. */

/** Pixels around the drawing area, for the numbers of the axes. */
export const PAD = { left: 52, right: 12, top: 8, bottom: 22 };
const CLIPPED = 0.01;  // Share of the highest and of the lowest values that "Ignore spikes" leaves out.
const FEW = 50;  // With fewer values, one of them is more than that share.

/** The indices of a line that lie in a range of x, and one on each side, to draw lines to the edges.
 * @param {ArrayLike<number>} x @param {number} from @param {number} to */
export function visible(x, from, to) {
  return [Math.max(0, firstFrom(x, from) - 1), Math.min(x.length, firstFrom(x, to) + 2)];
}

/**
 * The indices of the points to draw: of those on one pixel column, the first, lowest, highest and last.
 * A stroke takes time for every point, and these four cover the same pixels. Missing values stay.
 * @param {Line} line @param {Frame} frame
 */
export function outline({ x, y }, { x0, x1, width, px }) {
  const [first, end] = visible(x, x0, x1);
  if (end - first < 4 * width) return Array.from({ length: end - first }, (_, i) => first + i);
  /** @type {number[]} */
  const found = [];
  let from = first;
  for (let i = first + 1; i <= end; i++) {
    if (i < end && Math.round(px(x[i])) === Math.round(px(x[from]))) continue;
    found.push(...extremes(y, from, i));
    from = i;
  }
  return found;
}

/** @param {Values} y @param {number} first @param {number} end */
function extremes(y, first, end) {
  let low = first, high = first;
  for (let i = first; i < end; i++) {
    const value = y[i];
    if (value == null) return Array.from({ length: end - first }, (_, at) => first + at);
    if (value < Number(y[low])) low = i;
    if (value > Number(y[high])) high = i;
  }
  return [...new Set([first, Math.min(low, high), Math.max(low, high), end - 1])];
}

/** The index of the first x that is not below a value. @param {ArrayLike<number>} x @param {number} value */
function firstFrom(x, value) {
  let low = 0, high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The index of the x nearest to a value; -1 without any. @param {ArrayLike<number>} x @param {number} value */
export function nearest(x, value) {
  const at = Math.min(firstFrom(x, value), x.length - 1);
  return at > 0 && value - x[at - 1] < x[at] - value ? at - 1 : at;
}

/**
 * The ranges that the lines cover; null if there is nothing to draw.
 * @param {Line[]} lines @param {Span | null} zoom @param {boolean} isClipped
 * @returns {Extent | null}
 */
export function measure(lines, zoom, isClipped) {
  const known = lines.filter((line) => line.x.length);
  let [x0, x1] = zoom || [Math.min(...known.map((line) => line.x[0])),
    Math.max(...known.map((line) => line.x[line.x.length - 1]))];
  if (!isFinite(x0)) return null;
  if (x0 === x1) x1 = x0 + 1;
  let low = Infinity, high = -Infinity, positive = Infinity;
  const seen = [];
  for (const line of known) {
    if (line.kind === "faint" && isClipped && lines.length > 1) continue;
    const [first, end] = visible(line.x, x0, x1);
    for (let i = first; i < end; i++) {
      const y = line.y[i];
      if (y == null || line.x[i] < x0 || line.x[i] > x1) continue;
      if (y < low) low = y;
      if (y > high) high = y;
      if (y > 0 && y < positive) positive = y;
      if (isClipped) seen.push(y);
    }
  }
  if (low > high) return null;
  if (seen.length > FEW) {
    seen.sort((a, b) => a - b);
    low = seen[Math.floor(seen.length * CLIPPED)];
    high = seen[Math.ceil(seen.length * (1 - CLIPPED)) - 1];
  }
  return { x0, x1, low, high, positive };
}

/**
 * The mapping from values to the pixels of a box.
 * @param {Extent} extent @param {{ width: number, height: number }} box @param {boolean} wantsLog
 * @returns {Frame}
 */
export function fit({ x0, x1, low, high, positive }, box, wantsLog) {
  const log = wantsLog && positive < Infinity;
  if (log) [low, high] = [Math.log10(Math.max(low, positive)), Math.log10(high)];
  // An axis from zero shows how large a change is, where that leaves most of its height to the line.
  else if (low > 0 && low < 0.35 * high) low = 0;
  const space = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  if (low !== 0 || log) low -= space;
  high += space;
  const width = Math.max(10, box.width - PAD.left - PAD.right);
  const height = Math.max(10, box.height - PAD.top - PAD.bottom);
  return {
    x0, x1, low, high, log, width, height,
    px: (x) => PAD.left + ((x - x0) / (x1 - x0)) * width,
    py: (y) => {
      const value = log ? Math.log10(Math.max(y, positive)) : y;
      return PAD.top + (1 - (value - low) / (high - low)) * height;
    },
    toX: (pixel) => x0 + ((pixel - PAD.left) / width) * (x1 - x0),
  };
}

/** Round numbers of a linear axis. @param {number} low @param {number} high @param {number} wanted */
export function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(2, wanted), power = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 5].find((n) => n * power >= raw) || 10) * power;
  const found = [];
  // The tolerance keeps a tick that rounding has moved just outside of the axis.
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) {
    found.push(Number((n * step).toPrecision(12)));
  }
  return found;
}

/** Round numbers of a logarithmic axis. @param {number} low @param {number} high decimal logarithms */
export function logTicks(low, high) {
  const factors = high - low > 2.5 ? [1] : high - low > 1 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
  const found = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power++) {
    for (const value of factors.map((factor) => factor * 10 ** power)) {
      if (Math.log10(value) >= low && Math.log10(value) <= high) found.push(value);
    }
  }
  return found;
}

/** The range that two fingers on the chart show, so that the x under each stays under it.
 * @param {Frame} frame the frame when the second finger touched @param {[number, number]} from pixels of
 * the fingers then @param {[number, number]} to and now @returns {Span | null} */
export function pinched(frame, from, to) {
  const apart = to[0] - to[1], [a, b] = [frame.toX(from[0]), frame.toX(from[1])];
  const scale = (a - b) / apart;
  const x0 = a + (PAD.left - to[0]) * scale;
  // Fingers that meet or cross have no range.
  return scale > 0 && isFinite(scale) ? [x0, x0 + frame.width * scale] : null;
}

/* Formats numbers, durations, times and sizes in the language of the page. */
import { localDigits } from "./dictionary.js";
import { page } from "./page.js";

/** @param {number | null | undefined} value @param {number} [digits] significant digits */
export function number(value, digits) {
  if (value == null || !isFinite(value)) return "-";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    return localDigits(Number(value.toPrecision(digits || 3)).toExponential().replace("e+", "e"));
  }
  return localDigits(String(Number(value.toPrecision(digits || 4))));
}

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds == null || !isFinite(seconds)) return "-";
  const s = Math.max(0, Math.round(seconds));
  if (s < 90) return s + " s";
  const minutes = Math.round(s / 60);
  if (minutes < 60) return minutes + " min";
  return Math.floor(minutes / 60) + " h " + twoDigits(minutes % 60) + " min";
}

/** A time on the axis of a chart, as 1:02:03. @param {number} seconds */
export function stopwatch(seconds) {
  const s = Math.round(seconds), hours = Math.floor(s / 3600), minutes = Math.floor(s / 60) % 60;
  return hours ? `${hours}:${twoDigits(minutes)}:${twoDigits(s % 60)}` : `${minutes}:${twoDigits(s % 60)}`;
}

/** @param {number} value */
function twoDigits(value) {
  return String(value).padStart(2, "0");
}

/** The date and time of a Unix time. @param {number} seconds */
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleString(page.language, {
    month: "short", day: "numeric", hour: "2-digit", minute: "2-digit",
  });
}

/** @param {number} bytes */
export function fileSize(bytes) {
  return bytes < 2 ** 30 ? `${number(bytes / 2 ** 20, 3)} MiB` : `${number(bytes / 2 ** 30, 3)} GiB`;
}

/** The step in the name of a preview file, or the name if it has none. @param {string} file */
export function stepOf(file) {
  return Number((file.match(/\d+/) || [""])[0]) || file;
}

/* Addresses and JSON requests. */
import { h } from "./dom.js";
import { page } from "./page.js";

const TIMEOUT_MS = 15000;

/** An answer that is not a success, with its status code. */
export class HttpError extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** @param {string} run @param {string} rest */
export function runUrl(run, rest) {
  return "studio/runs/" + encodeURIComponent(run) + "/" + rest;
}

/** The rows of a run after those already read. @param {Series} series @returns {Promise<RowsAnswer>} */
export function getRows(series) {
  return getJson(runUrl(series.run, `rows?max=1000&cursor=${encodeURIComponent(series.cursor)}`));
}

/** @param {string} url @returns {Promise<any>} */
export async function getJson(url) {
  if (page.isLoggedOut) throw new HttpError("Log in first.", 401);
  const answer = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  const values = await answer.json();
  if (!answer.ok) throw new HttpError(values.error, answer.status);
  return values;
}

/**
 * The element for a preview of a run: an image for SVG files, else an audio player.
 * @param {string} run @param {string} file @param {string} [words]
 */
export function previewOf(run, file, words) {
  const src = runUrl(run, "previews/" + encodeURIComponent(file));
  return file.endsWith(".svg") ? h("img", { src, alt: words || "", loading: "lazy" })
    : h("audio", { controls: true, preload: "none", src });
}

/* The state that the scripts share, and what the server wrote into the page for them. */

const meta = globalThis.document?.querySelector("meta[name=timbre]");

/** @type {{ pollMs: number, metrics: Metric[] }} */
export const settings = JSON.parse(meta?.getAttribute("content") || '{"pollMs": 1000, "metrics": []}');

/** @type {PageState} */
export const page = {
  run: null, cursor: "", step: 0, points: 0, state: "", updates: 0, active: [], series: null,
  answeredAt: 0, isLoggedOut: false, language: "en", confirmMs: 5000,
  speech: { state: "idle", firstSoundMs: null },
};

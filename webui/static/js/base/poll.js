/* One poller for the whole page: rows of the displayed run, else only the list of active runs.

   It pauses while the browser tab is hidden, polls slowly while nothing is training, and backs off
   with a notice while the server is unreachable; its cursor then fetches everything missed. */
import { Series } from "../charts/series.js";
import { setAddress } from "./navigation.js";
import { page, settings } from "./page.js";
import { HttpError, getJson, getRows } from "./server.js";

/** @type {{ [K in keyof PollEvents]: ((value: PollEvents[K]) => void)[] }} */
const listeners = { rows: [], active: [], link: [], login: [] };
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
let failures = 0, isAsking = false, areRowsWanted = () => false;

/** @template {keyof PollEvents} K @param {K} kind @param {(value: PollEvents[K]) => void} listener */
export function on(kind, listener) {
  listeners[kind].push(listener);
}

/** @template {keyof PollEvents} K @param {K} kind @param {PollEvents[K]} value */
function tell(kind, value) {
  for (const listener of listeners[kind]) listener(value);
}

/** Poll the rows of the displayed run only while a function says so. @param {() => boolean} isShown */
export function wantRows(isShown) {
  areRowsWanted = isShown;
}

/** Show a run on the Live tab, and put its name into the address. @param {string | null} run */
export function show(run) {
  if (!run) return;
  if (run !== page.run) {
    Object.assign(page, { run, series: new Series(run), cursor: "", step: 0, points: 0, state: "" });
    tell("rows", "");
  }
  setAddress("run", run);
  wake();
}

/** Poll now. */
export function wake() {
  clearTimeout(timer);
  timer = setTimeout(tick, 0);
}

/** Show the run in the address, and poll from now on. */
export function startPolling() {
  document.addEventListener("visibilitychange", () => document.hidden || wake());
  show(new URLSearchParams(location.search).get("run"));
  wake();
}

async function tick() {
  clearTimeout(timer);
  if (isAsking) return;
  isAsking = true;
  const asked = page.series;
  try {
    if (!document.hidden) await ask();
    if (failures) tell("link", true);
    failures = 0;
  } catch (error) {
    const status = error instanceof HttpError ? error.status : 0;
    if (status === 401) logOut();
    else if (status === 404 && page.run) {
      // The user may have chosen another run meanwhile.
      if (asked === page.series) forget(/** @type {HttpError} */ (error).message);
    } else {
      failures += 1;
      tell("link", false);
    }
  } finally {
    isAsking = false;
    if (!page.isLoggedOut) timer = setTimeout(tick, delay());
  }
}

function delay() {
  if (failures) return settings.pollMs * [2, 5, 10][Math.min(failures, 3) - 1];
  return page.active.length || page.series?.status?.active ? settings.pollMs : 5 * settings.pollMs;
}

async function ask() {
  const { series } = page;
  if (!series || !areRowsWanted()) return take((await getJson("studio/active")).active);
  const answer = await getRows(series);
  if (series !== page.series) return;
  series.take(answer);
  const { status } = answer;
  take(status.active ? [status, ...answer.active] : answer.active);
  Object.assign(page, { cursor: series.cursor, step: status.step, points: series.steps.count,
    state: status.state, updates: page.updates + 1 });
  tell("rows", "");
}

/** @param {RunStatus[]} active */
function take(active) {
  page.active = active;
  page.answeredAt = Date.now();
  tell("active", active);
}

/** The session has expired: stop polling until the user logs in again. */
function logOut() {
  page.isLoggedOut = true;
  tell("login", null);
}

/** @param {string} reason */
function forget(reason) {
  Object.assign(page, { run: null, series: null, state: "" });
  tell("rows", reason);
}

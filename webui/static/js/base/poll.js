/* One poller for the whole page: rows of the displayed run, else only the list of active runs.

   It pauses while the browser tab is hidden, polls slowly while nothing is training, and backs off
   with a notice while the server is unreachable; its cursor then fetches everything missed. */
(function () {
  "use strict";
  const t = window.timbre;
  const listeners = { rows: [], active: [], link: [], login: [] };
  Object.assign(t, {
    run: null, cursor: "", step: 0, points: 0, state: "", updates: 0, active: [], series: null,
    answeredAt: 0, isLoggedOut: false,
  });
  let timer = null, failures = 0, isAsking = false;

  t.on = (kind, listener) => listeners[kind].push(listener);

  /* Show a run on the Live tab, and put its name into the address. */
  t.show = function (run) {
    if (!run) return;
    if (run !== t.run) {
      t.run = run;
      t.series = new t.Series(run);
      Object.assign(t, { cursor: "", step: 0, points: 0, state: "" });
      for (const listener of listeners.rows) listener();
    }
    const address = new URL(location.href);
    address.searchParams.set("run", run);
    history.replaceState(null, "", address);
    t.wake();
  };

  t.wake = function () {
    clearTimeout(timer);
    timer = setTimeout(tick, 0);
  };

  async function tick() {
    clearTimeout(timer);
    if (isAsking) return;
    isAsking = true;
    const asked = t.series;
    try {
      if (!document.hidden) await ask();
      if (failures) tell(true);
      failures = 0;
    } catch (error) {
      if (error.status === 401) leave();
      else if (error.status === 404 && t.run) {
        // The user may have chosen another run meanwhile.
        if (asked === t.series) forget(error.message);
      } else {
        failures += 1;
        tell(false);
      }
    } finally {
      isAsking = false;
      if (!t.isLoggedOut) timer = setTimeout(tick, delay());
    }
  }

  function delay() {
    if (failures) return t.pollMs * [2, 5, 10][Math.min(failures, 3) - 1];
    return t.active.length || (t.series && t.series.status && t.series.status.active)
      ? t.pollMs : 5 * t.pollMs;
  }

  async function ask() {
    if (!t.run || !t.isLiveShown || !t.isLiveShown()) {
      take(await t.getJson("studio/active"));
      return;
    }
    const series = t.series;
    const query = `rows?cursor=${encodeURIComponent(series.cursor)}&max=1000`;
    const answer = await t.getJson(t.runUrl(series.run, query));
    if (series !== t.series) return;
    series.take(answer);
    const active = answer.status.active ? [answer.status, ...answer.active] : answer.active;
    take({ active });
    t.cursor = series.cursor;
    t.step = series.status.step;
    t.points = series.steps.count;
    t.state = series.status.state;
    t.updates += 1;
    for (const listener of listeners.rows) listener();
  }

  function take(answer) {
    t.active = answer.active;
    t.answeredAt = Date.now();
    for (const listener of listeners.active) listener();
  }

  /* The session has expired: stop polling until the user logs in again. */
  function leave() {
    t.isLoggedOut = true;
    for (const listener of listeners.login) listener();
  }

  function tell(isBack) {
    for (const listener of listeners.link) listener(isBack);
  }

  function forget(reason) {
    t.run = t.series = null;
    t.state = "";
    for (const listener of listeners.rows) listener(reason);
  }

  document.addEventListener("visibilitychange", () => document.hidden || t.wake());
  const run = new URLSearchParams(location.search).get("run");
  if (run) t.show(run);
  t.wake();
})();

/* One poller for the whole page: rows of the run on show, else only what trains right now.

   It waits while the browser tab is hidden, asks seldom while nothing trains, and backs off with a
   notice while the server is away; its cursor then fetches everything that was missed. */
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

  /* Show a run on the live tab; the address then leads there again. */
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
        // Another run may be on show by now.
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

  /* The server knows this page no more: it asks for nothing until the person has logged in anew. */
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

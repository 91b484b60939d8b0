/* The run table with its comparison, and the recent runs on the first tab. */
(function () {
  "use strict";
  const t = window.timbre;
  const COLOURS = ["--t-line-1", "--t-line-2", "--t-line-3", "--t-line-4", "--t-line-5", "--t-line-6"];
  const DASHES = [[], [8, 3], [2, 3], [8, 3, 2, 3], [12, 4], [4, 4]];

  t.mountRecent = function (element, trigger) {
    const list = t.h("div", { class: "recent" });
    element.replaceChildren(list);
    refreshWhileShown(element, async () => {
      const answer = await t.getJson("studio/runs?most=3");
      list.replaceChildren(...answer.runs.map((run) => t.h("div", { class: "recent-run" },
        t.chip(run.state, run.symbol), t.h("b", {}, run.name),
        t.h("span", { class: "quiet" }, `step ${run.step} of ${run.total_steps}`),
        t.h("span", { class: "space" }), openButton(run),
        run.actions.includes("listen") ? button("Listen", () => listen(run)) : null,
        run.actions.includes("resume") ? button("Resume", () => resume(trigger, run)) : null)));
      if (!answer.runs.length) {
        list.replaceChildren(t.h("p", { class: "quiet" }, "No runs yet. They appear here."));
      }
    });
  };

  t.mountRuns = function (element, trigger) {
    const filter = t.h("input", { type: "search", placeholder: "Filter by name", id: "runs-filter",
      "aria-label": "Filter by name" });
    const body = t.h("tbody", {});
    const table = t.h("table", { class: "runs-table" }, t.h("thead", {}, t.h("tr", {},
      ["", "Run", "State", "Step", "Best eval", "s/step", "Peak memory", "Trained", "Created", ""].map((name) => t.h("th", {}, name)))), body);
    const comparison = t.h("div", { class: "comparison" });
    const chosen = new Set();
    let rows = [];
    element.replaceChildren(t.h("div", { class: "toolbar" }, filter,
      t.h("span", { class: "quiet" }, "Tick two to six runs to compare them.")),
      t.h("div", { class: "scroll" }, table), comparison);

    const draw = () => {
      const wanted = filter.value.toLowerCase();
      const shown = rows.filter((run) => run.name.toLowerCase().includes(wanted));
      body.replaceChildren(...shown.map((run) => row(run, chosen, trigger, () =>
        compare(comparison, [...chosen]))));
      if (!shown.length) body.replaceChildren(t.h("tr", {}, t.h("td", { colspan: "10" },
        rows.length ? "No run has that in its name." : "No runs yet.")));
    };
    filter.addEventListener("input", draw);
    refreshWhileShown(element, async () => {
      rows = (await t.getJson("studio/runs")).runs;
      draw();
    });
  };

  let listened = null;

  /* The previews of the run on the listening tab, oldest first. */
  t.mountPreviews = function (element) {
    const list = t.h("div", { class: "previews" });
    element.replaceChildren(list);
    t.drawPreviews = async () => {
      const answer = listened ? await t.getJson(t.runUrl(listened, "previews")).catch(() => null) : null;
      const files = answer ? answer.files : [];
      list.replaceChildren(...files.map((file) => t.h("div", { class: "preview" },
        t.h("b", {}, "step " + (Number((file.match(/\d+/) || [""])[0]) || file)),
        t.h("audio", { controls: true, preload: "none",
          src: t.runUrl(listened, "previews/" + encodeURIComponent(file)) }))));
      if (!files.length) list.replaceChildren(t.h("p", { class: "quiet" }, "No previews yet."));
    };
    t.drawPreviews();
  };

  /* Choose the run of the listening tab; returned, so that Gradio hands it to the server. */
  t.listenTo = function (run) {
    listened = run;
    if (t.drawPreviews) t.drawPreviews();
    return run;
  };

  function row(run, chosen, trigger, changed) {
    const tick = t.h("input", { type: "checkbox", "aria-label": "Compare " + run.name,
      checked: chosen.has(run.name), onchange: () => {
        if (tick.checked && chosen.size < 6) chosen.add(run.name);
        else chosen.delete(run.name);
        tick.checked = chosen.has(run.name);
        changed();
      } });
    const two = (first, second) => [t.h("div", {}, first), t.h("div", { class: "quiet" }, second)];
    const cells = [tick, two(t.h("b", {}, run.name), run.dataset || ""), t.chip(run.state, run.symbol),
      `${run.step} / ${run.total_steps}`, t.number(run.best_eval), t.number(run.median_s_per_step, 3),
      run.peak_memory_gib == null ? "-" : t.number(run.peak_memory_gib, 3) + " GiB",
      two(run.family || "-", [run.optimizer, ...(run.optimizations || [])].join(", ")),
      run.created_at ? t.clock(run.created_at) : "-"];
    const links = t.h("span", { class: "links" }, openButton(run),
      run.actions.includes("resume") ? button("Resume", () => resume(trigger, run)) : null,
      run.step ? button("Export", () => trigger("click", { action: "export", run: run.name })) : null,
      t.h("a", { href: t.runUrl(run.name, "metrics.csv"), download: run.name + ".csv" }, "CSV"),
      t.h("a", { href: t.runUrl(run.name, "curves.png"), download: run.name + ".png" }, "PNG"));
    return t.h("tr", { "data-run": run.name }, [...cells, links].map((cell) => t.h("td", {}, cell)));
  }

  async function compare(holder, names) {
    if (names.length < 2) {
      holder.replaceChildren();
      return;
    }
    const found = await Promise.all(names.map(async (name) => ({
      name,
      rows: await t.getJson(t.runUrl(name, "rows?cursor=&max=1000")),
      config: await t.getJson(t.runUrl(name, "config")),
    })));
    const group = new t.ChartGroup();
    const train = new t.Chart(group, { title: "Loss (smoothed)", large: true });
    const evals = new t.Chart(group, { title: "Eval loss" });
    holder.replaceChildren(t.h("h3", {}, "Comparison"), train.element, evals.element,
      differences(found));
    const lines = (part, metric, kind) => found.map((run, i) => {
      const table = new t.Table();
      table.append(run.rows[part]);
      const y = table.get(metric);
      return { label: run.name, colour: COLOURS[i], dash: DASHES[i], x: table.get("step"), kind,
        y: kind === "line" ? t.smooth(y, 0.9) : y };
    });
    train.set(lines("steps", "train/loss", "line"));
    evals.set(lines("validations", "val/loss", "dots"));
  }

  /* Only the settings in which the runs differ. */
  function differences(found) {
    const flat = found.map((run) => flatten(run.config, ""));
    const names = [...new Set(flat.flatMap((values) => Object.keys(values)))].sort();
    const differing = names.filter((name) => new Set(flat.map((values) => values[name])).size > 1);
    if (!differing.length) return t.h("p", { class: "quiet" }, "All settings are the same.");
    return t.h("div", { class: "scroll" }, t.h("table", { class: "runs-table" },
      t.h("thead", {}, t.h("tr", {}, t.h("th", {}, "Setting"),
        found.map((run) => t.h("th", {}, run.name)))),
      t.h("tbody", {}, differing.map((name) => t.h("tr", {}, t.h("td", {}, name),
        flat.map((values) => t.h("td", {}, values[name] == null ? "-" : values[name])))))));
  }

  function flatten(values, prefix) {
    const found = {};
    for (const [name, value] of Object.entries(values)) {
      if (value && typeof value === "object") Object.assign(found, flatten(value, prefix + name + "."));
      else found[prefix + name] = value === "" ? "(empty)" : String(value);
    }
    return found;
  }

  function openButton(run) {
    return button("Watch", () => {
      t.show(run.name);
      t.openTab("live");
    });
  }

  function listen(run) {
    t.show(run.name);
    t.openTab("listen");
  }

  function resume(trigger, run) {
    trigger("click", { action: "resume", run: run.name });
    t.show(run.name);
    t.openTab("live");
  }

  function button(label, onclick) {
    return t.h("button", { type: "button", class: "small", onclick }, label);
  }

  /* Refresh now and every few seconds, but only while the element is on screen. */
  function refreshWhileShown(element, refresh) {
    const isShown = () => element.isConnected && element.offsetParent !== null && !document.hidden;
    const run = () => { if (isShown()) refresh().catch(() => {}); };
    new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) run();
    }).observe(element);
    setInterval(run, 4 * t.pollMs);
    run();
  }
})();

/* The live panel: state, tiles, charts, previews and log of one run. */
(function () {
  "use strict";
  const t = window.timbre;
  const { TILES, deviceKind, tileLabel, elapsedText, clockText } = t.tiles;
  const COLOURS = ["--t-line-1", "--t-line-2", "--t-line-3", "--t-line-4", "--t-line-5", "--t-line-6"];
  const MEMORY = ["perf/memory_gib", "perf/memory_reserved_gib", "perf/memory_peak_gib",
    "perf/host_memory_gib"];
  const BUTTONS = [
    ["preview", "Preview now", ""], ["save", "Save now", ""], ["resume", "Resume", "primary"],
    ["stop", "Stop and save", "stop"],
  ];
  const READING_MS = 5000;  // How long a problem stays visible before another run is shown.
  /* Chart settings; kept here because Gradio may rebuild the panel. */
  const VIEW = { smoothing: 0.9, log: false, x: "step", clip: false };
  const MORE_HELP = "Planned steps keep their learning rates; added steps use the last rate of the " +
    "schedule (or 5 % of its peak if that is zero).";

  t.mountLive = function (element, trigger) {
    const panel = new Panel(element, trigger);
    t.isLiveShown = () => element.isConnected && element.offsetParent !== null;
    t.on("rows", (problem) => panel.show(problem));
    t.on("active", () => panel.offerRuns());
    const seen = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) panel.arrive();
    });
    seen.observe(element);
    panel.show();
    panel.arrive();
  };

  class Panel {
    constructor(element, trigger) {
      this.element = element;
      this.trigger = trigger;
      this.view = VIEW;
      this.group = new t.ChartGroup();
      this.group.formatX = (x) => this.view.x !== "time" ? t.number(x, 6)
        : this.group.zoom && this.group.zoom[1] - this.group.zoom[0] < 30 ? `${x.toFixed(1)} s` : clockText(x);
      this.group.onzoom = (range) => this.zoomed(range);
      this.detail = null;
      this.build();
    }

    /* If no run is chosen, show an active one, else the newest, unless a problem is being shown. */
    async arrive() {
      await this.listRuns();
      const isRead = !(Date.now() - this.lostAt < READING_MS);
      if (!t.run && isRead && this.names && this.names.length) {
        t.show((t.active[0] || {}).name || this.names[0]);
      }
      t.wake();
    }

    build() {
      this.picker = t.h("select", { "aria-label": "Run", id: "live-run",
        onchange: () => t.show(this.picker.value) });
      this.chip = t.h("span", {});
      this.since = t.h("span", { class: "quiet" });
      this.buttons = BUTTONS.map(([action, label, kind]) => t.h("button",
        { type: "button", class: kind, "data-action": action, id: "live-" + action,
          onclick: () => this.press(action) }, label));
      this.listen = t.h("button", { type: "button", class: "primary", id: "live-listen",
        onclick: () => t.openTab("listen") }, "Listen");
      this.discard = t.confirmButton("Discard", "Stop and move to trash?", () => this.moveToTrash(),
        { class: "", id: "live-discard", title: "Moves the run to the trash, where you can restore it" });
      this.kill = t.confirmButton("Force stop", "Stop without saving?", () => this.press("kill"),
        { class: "stop", id: "live-kill", title: "Kills the training process; Resume continues from the last checkpoint" });
      const head = t.h("div", { class: "live-head" }, this.picker, this.chip, this.since,
        t.h("span", { class: "space" }), this.buttons, this.kill, this.discard, this.listen);
      this.bar = t.h("div", { class: "progress", role: "progressbar", "aria-label": "Progress" },
        t.h("i", {}));
      this.words = t.h("div", { class: "progress-words", id: "live-words" });
      this.more = this.moreBox();
      this.problem = t.h("div", { class: "notice error", role: "alert", id: "live-problem" });
      this.alert = t.h("div", { role: "alert", id: "live-alert" });
      this.tiles = TILES.map(([label]) => t.h("div", { class: "tile" },
        t.h("span", { class: "tile-label" }, label), t.h("strong", {}, "-"),
        t.h("span", { class: "tile-unit" }), t.h("canvas", {})));
      this.breakdown = new t.Breakdown();
      this.history = new t.History();
      this.states = t.h("div", { class: "states", id: "live-optimizations" });
      this.tileBox = t.h("div", { class: "tiles" }, this.tiles);
      this.body = t.h("div", {}, this.tileBox, this.states,
        this.breakdown.element, this.toolbar(), this.charts(), this.previewBox(), this.noticeBox(),
        this.history.element, this.logBox());
      this.empty = t.h("div", { class: "empty", id: "live-empty" },
        t.h("p", {}, "Nothing has been trained yet."),
        t.h("button", { type: "button", class: "primary", onclick: () => t.openTab("start") },
          "Open Start to train a demo voice"));
      this.main = t.h("div", { class: "live" }, head, this.bar, this.words, this.more,
        this.problem, this.alert, this.body);
      this.element.replaceChildren(this.empty, this.main);
    }

    /* Adds steps to the plan, during training or after the end. */
    moreBox() {
      this.moreCount = t.h("input", { type: "number", min: "1", step: "1", value: "100",
        id: "live-more-count", "aria-label": "Number of steps to add", oninput: () => this.sayMore() });
      this.moreWords = t.h("span", { class: "quiet" });
      return t.h("details", { class: "more", id: "live-more-box", ontoggle: () => this.sayMore() },
        t.h("summary", {}, "Run more steps"), t.h("div", { class: "toolbar" }, this.moreCount,
          t.h("button", { type: "button", id: "live-more",
            onclick: () => this.press("more", this.moreCount.value) }, "Add steps"), this.moreWords));
    }

    sayMore() {
      const status = t.series && t.series.status, count = Number(this.moreCount.value);
      if (!status || !(count >= 1)) return t.setText(this.moreWords, "Enter an integer of at least 1.");
      const end = (status.state === "finished" ? status.step : status.total_steps) + count;
      t.setText(this.moreWords, `The run will end at step ${end}. ${MORE_HELP}`);
    }

    moveToTrash() {
      t.trashedRun = t.run;
      this.press("discard");
    }

    toolbar() {
      const redraw = () => this.drawCharts();
      const slider = t.h("input", { type: "range", min: "0", max: "0.99", step: "0.01",
        value: VIEW.smoothing, id: "live-smoothing" });
      const shown = t.h("output", {}, VIEW.smoothing.toFixed(2));
      slider.addEventListener("input", () => {
        this.view.smoothing = Number(slider.value);
        t.setText(shown, this.view.smoothing.toFixed(2));
        redraw();
      });
      const check = (label, name) => t.h("label", {}, t.h("input", { type: "checkbox", checked: VIEW[name],
        onchange: (event) => { this.view[name] = event.target.checked; redraw(); } }), " " + label);
      const radio = (label, value) => t.h("label", {}, t.h("input", { type: "radio", name: "live-x",
        checked: value === VIEW.x,
        onchange: () => { this.view.x = value; this.group.setZoom(null); redraw(); } }), " " + label);
      this.overlay = new t.Overlay(redraw);
      this.reset = t.h("button", { type: "button", class: "small", id: "live-show-all", disabled: true,
        onclick: () => this.group.setZoom(null) }, "Show all");
      return t.h("div", { class: "toolbar" },
        t.h("label", {}, "Smoothing ", slider, " ", shown),
        check("Log scale", "log"), check("Ignore spikes", "clip"),
        t.h("span", { class: "radios", role: "radiogroup", "aria-label": "Horizontal axis" },
          "X axis: ", radio("steps", "step"), radio("time", "time"), radio("epochs", "epoch")),
        this.overlay.element, this.reset, this.downloads());
    }

    downloads() {
      this.files = ["metrics.csv", "metrics.json", "curves.png", "curves.svg"].map((file) =>
        t.h("a", { "data-file": file }, file.split(".")[1].toUpperCase()));
      return t.h("span", { class: "links", id: "live-downloads" }, "Download: ", this.files);
    }

    charts() {
      const chart = (title, large) => new t.Chart(this.group, {
        title, large, log: () => large && this.view.log, clip: () => large && this.view.clip });
      this.loss = chart("Loss", true);
      this.small = {
        parts: chart("Loss parts"), lr: chart("Learning rate"), seconds: chart("Seconds per step"),
        memory: chart("Memory (GiB)"), norm: chart("Gradient norm"), measures: chart("Eval measures"),
      };
      this.plays = t.h("div", { class: "plays" });
      this.key = t.h("p", { class: "quiet key" },
        "Drag to zoom, double-click to reset. Dots on the axis mark checkpoints (green, the best one larger), " +
        "resumes (blue), changes of the last step (purple) and warnings (red); hover over one for details.");
      return t.h("div", {}, t.h("div", { class: "loss-box" }, this.loss.element, this.plays, this.key),
        t.h("div", { class: "charts" }, Object.values(this.small).map((item) => item.element)));
    }

    previewBox() {
      this.previews = t.h("div", { class: "previews", id: "live-previews" });
      this.previewTitle = t.h("h3", {}, "Previews");
      return t.h("section", {}, this.previewTitle, this.previews);
    }

    noticeBox() {
      this.notices = t.h("div", { class: "notices", id: "live-notices" });
      return this.notices;
    }

    logBox() {
      this.log = t.h("pre", { tabindex: "0" });
      this.logHolder = t.h("details", { ontoggle: () => this.readLog() },
        t.h("summary", {}, "Log (last 200 lines)"), this.log);
      return this.logHolder;
    }

    press(action, count) {
      this.trigger("click", { action, run: t.run, count: count || "" });
      setTimeout(t.wake, 300);
    }

    async listRuns() {
      try {
        const answer = await t.getJson("studio/runs?most=200");
        this.names = answer.runs.map((run) => run.name);
      } catch (error) {
        this.names = this.names || [];
      }
      this.offerRuns();
    }

    offerRuns() {
      const names = [...(this.names || [])];
      for (const name of [...t.active.map((run) => run.name), t.run]) {
        if (name && !names.includes(name)) names.unshift(name);
      }
      const offered = [...this.picker.options].map((option) => option.value);
      if (offered.join("\n") !== names.join("\n")) {
        this.picker.replaceChildren(...names.map((name) => t.h("option", { value: name }, name)));
      }
      if (t.run) this.picker.value = t.run;
      this.overlay.offer(names, t.run);
    }

    show(problem) {
      const series = t.series;
      this.empty.hidden = Boolean(t.run);
      this.main.hidden = !t.run;
      if (problem) {
        this.lostAt = Date.now();
        t.setText(this.empty.firstChild, problem);
      }
      if (!t.run && t.trashedRun) t.setText(this.empty.firstChild,
        `${t.trashedRun} was moved to the trash. You can restore it on the Runs tab.`);
      this.offerRuns();
      if (!series || !series.status) {
        if (series) this.words.textContent = "Loading the run ...";
        return;
      }
      if (this.shownRun !== series.run || this.shownMarks > series.marks.length) this.startAfresh();
      this.showState(series);
      this.showTiles(series);
      this.showMarks(series);
      this.breakdown.show(series);
      this.drawCharts();
      this.overlay.readOn();
      if (this.logHolder.open) this.readLog();
    }

    startAfresh() {
      this.shownRun = t.series.run;
      this.shownMarks = 0;
      this.detail = null;
      this.group.zoom = null;
      this.previews.replaceChildren();
      this.notices.replaceChildren();
      this.alert.replaceChildren();
      this.plays.replaceChildren();
      this.states.replaceChildren();
      this.history.clear();
      t.trashedRun = null;
      this.moreCount.value = Math.max(1, Math.round(t.series.status.total_steps / 10)) || 100;
      for (const link of this.files) {
        link.href = t.runUrl(t.run, link.dataset.file);
        link.download = t.run + "." + link.dataset.file.split(".")[1];
      }
    }

    showState(series) {
      const status = series.status;
      this.chip.replaceChildren(t.chip(status.state, status.symbol));
      t.setText(this.since, "created " + t.clock(status.created_at));
      for (const button of this.buttons) {
        button.hidden = !status.actions.includes(button.dataset.action);
      }
      this.listen.hidden = !status.actions.includes("listen");
      this.kill.hidden = !status.actions.includes("kill");
      this.discard.hidden = !status.actions.includes("discard");
      this.more.hidden = !status.actions.includes("more");
      if (this.more.open) this.sayMore();
      this.bar.firstChild.style.width = status.percent + "%";
      this.bar.setAttribute("aria-valuenow", status.percent);
      this.bar.classList.toggle("waiting", status.active && Boolean(status.phase));
      const words = [`${Math.floor(status.percent)} %`, `step ${status.step} of ${status.total_steps}`];
      if (status.phase) words.unshift(status.phase);
      if (status.eta) words.push(status.eta);
      const elapsed = elapsedText(series);
      if (elapsed) words.push(elapsed);
      t.setText(this.words, words.join("   -   "));
      this.problem.hidden = !status.reason;
      this.problem.classList.toggle("error", status.state === "failed");
      this.problem.classList.toggle("warning", status.state !== "failed");
      t.setText(this.problem, status.reason ? `${status.reason} ${status.remedy}`.trim() : "");
    }

    showTiles(series) {
      const kind = deviceKind(series);
      TILES.forEach(([label, name, digits, words], i) => {
        const table = name.startsWith("val/") ? series.validations : series.steps;
        const column = table.get(name);
        const isShown = name in table.columns || !name.startsWith("perf/");
        // Without a GPU, the memory of the device is the host memory, so one tile is enough.
        this.tiles[i].hidden = !isShown || (name === "perf/host_memory_gib" && kind !== "cuda");
        t.setText(this.tiles[i].children[0], tileLabel(label, kind, table));
        t.setText(this.tiles[i].children[1], t.number(table.last(name), digits));
        t.setText(this.tiles[i].children[2], words(series));
        t.sparkline(this.tiles[i].children[3], column.slice(-60), "--t-line-1");
      });
      // With ten tiles, the last one would be alone in its row.
      this.tileBox.classList.toggle("many", this.tiles.filter((tile) => !tile.hidden).length > 9);
    }

    showMarks(series) {
      for (const mark of series.marks.slice(this.shownMarks)) {
        if (mark.kind === "preview") this.addPreview(mark);
        if (mark.kind === "notice" && !isRepeated(mark, series)) this.addNotice(mark);
        if (mark.kind === "plan") this.addNotice({ step: mark.step, values: { level: "info",
          text: `The run now ends at step ${mark.values.last_step}.` } });
        if (mark.kind === "started") this.showOptimizations(mark.values);
        this.history.add(mark);
      }
      this.shownMarks = series.marks.length;
      this.previewTitle.hidden = !this.previews.children.length;
    }

    showOptimizations(started) {
      const facts = started.facts || {};
      const words = ["family", "parameters", "device", "optimizer", "schedule", "train_clips",
        "val_clips"].filter((name) => facts[name] != null)
        .map((name) => t.h("span", { class: "fact" }, `${name.replace("_", " ")}: `,
          t.h("b", {}, typeof facts[name] === "number" ? facts[name].toLocaleString("en")
            : String(facts[name]))));
      const states = Object.entries(started.optimizations || {}).map(([name, state]) =>
        t.h("span", { class: "fact " + (state.on ? "on" : state.asked ? "missing" : "off") },
          t.h("b", {}, name.replaceAll("_", " ") + (state.on ? " on" : " off")),
          t.h("small", {}, " " + state.detail)));
      const isOff = (chip) => chip.classList.contains("off"), off = states.filter(isOff);
      this.states.replaceChildren(t.h("div", {}, words, states.filter((chip) => !isOff(chip))),
        off.length ? t.h("details", {}, t.h("summary", {}, `${off.length} optimizations are off`),
          t.h("div", { class: "chips" }, off)) : "");
    }

    addPreview(mark) {
      const file = mark.values.path.split("/").pop();
      const shown = t.previewOf(t.run, file, mark.values.text);
      const text = t.h("span", { dir: "auto" }, mark.values.text);
      this.previews.prepend(t.h("div", { class: "preview" },
        t.h("b", {}, "step " + mark.step), shown, text));
      if (!shown.play) return;
      const play = t.h("button", { type: "button", class: "play", "data-step": mark.step,
        "aria-label": "Play the preview of step " + mark.step, onclick: () => shown.play() }, "\u25b6");
      play.mark = mark;
      this.plays.append(play);
    }

    addNotice(mark) {
      const { level, text, remedy } = mark.values;
      const words = `step ${mark.step}: ${text} ${remedy || ""}`.trim();
      const offered = mark.values.offer === "rescue" ? t.h("button", { type: "button", class: "small rescue",
        onclick: () => this.startAgain() }, "Restart with AdamW from the last good checkpoint") : null;
      this.notices.prepend(t.h("div", { class: "notice " + level }, words, offered));
      if (offered) this.alert.replaceChildren(this.notices.firstChild);
      while (this.notices.children.length > 30) this.notices.lastChild.remove();
    }

    /* Restart this run under a new name, and show the new run once it exists. */
    startAgain() {
      const before = t.run;
      this.press("rescue");
      const look = async (tries) => {
        await this.listRuns();
        const next = (this.names || []).find((name) => name.startsWith(before + "-adamw"));
        if (next && t.run === before) t.show(next);
        else if (!next && tries) setTimeout(() => look(tries - 1), 1000);
      };
      look(40);
    }

    async readLog() {
      if (!this.logHolder.open || !t.run) return;
      const answer = await fetch(t.runUrl(t.run, "log"), { cache: "no-store" }).catch(() => null);
      if (answer && answer.ok) t.setText(this.log, (await answer.text()) || "(empty)");
    }

    async zoomed(range) {
      this.detail = null;
      this.reset.disabled = !range;
      const series = t.series;
      const steps = range && series && this.stepsOf(range, series);
      if (!steps) return this.drawCharts();
      // Start before the range, so that the smoothed line looks the same as in the full view.
      const from = Math.max(0, Math.floor(steps[0] - (steps[1] - steps[0]) / 2));
      const query = `rows?from=${from}&to=${Math.ceil(steps[1])}&max=1500`;
      const answer = await t.getJson(t.runUrl(series.run, query)).catch(() => null);
      if (!answer || series !== t.series || this.group.zoom !== range) return;
      this.detail = new t.Table();
      this.detail.append(answer.steps);
      this.drawCharts();
    }

    /* Convert a range of the horizontal axis (steps, seconds or epochs) to steps. */
    stepsOf(range, series) {
      if (this.view.x === "step") return range;
      if (this.view.x === "epoch") return range.map((x) => x * (series.status.steps_per_epoch || 1));
      const x = this.axis(series.steps, series), steps = series.steps.get("step");
      const inside = steps.filter((step, i) => x[i] >= range[0] && x[i] <= range[1]);
      return inside.length ? [inside[0], inside[inside.length - 1]] : null;
    }

    /* The x of each row: the step, the seconds since the first step, or the epoch. */
    axis(table, series) {
      if (this.view.x === "time") {
        const first = series.steps.get("time")[0] || series.validations.get("time")[0] || 0;
        return table.get("time").map((time) => time - first);
      }
      if (this.view.x === "epoch") {
        return table.get("step").map((step) => step / (series.status.steps_per_epoch || 1));
      }
      return table.get("step");
    }

    drawCharts() {
      const series = t.series;
      if (!series || !series.status || !t.isLiveShown()) return;
      const steps = this.detail || series.steps, x = this.axis(steps, series);
      const vals = series.validations, vx = this.axis(vals, series);
      const loss = steps.get("train/loss");
      this.loss.set([
        { label: "train, each step", colour: "--t-line-1", x, y: loss, kind: "faint" },
        { label: "train", colour: "--t-line-1", x, y: t.smooth(loss, this.view.smoothing), kind: "line" },
        { label: "eval", colour: "--t-line-2", x: vx, y: vals.get("val/loss"), kind: "dots", dash: [5, 4] },
        ...this.otherLines("train/loss", "train", "--t-line-4"),
        ...this.otherLines("val/loss", "eval", "--t-line-3"),
      ], this.axisMarks(series));
      const one = (label, name, colour) => [{ label, colour, x, y: steps.get(name), kind: "line" },
        ...this.otherLines(name, "", "--t-line-6")];
      const many = (table, xs, names, kind) => names.slice(0, 6).map((name, i) => ({
        label: name.split("/").pop().replace(/_gib$/, "").replaceAll("_", " "), colour: COLOURS[i], x: xs, kind,
        y: kind === "line" ? t.smooth(table.get(name), this.view.smoothing) : table.get(name) }));
      const named = (table, start) => Object.keys(table.columns).filter((name) => name.startsWith(start));
      this.small.parts.set(many(steps, x, named(steps, "train/loss/"), "line"));
      this.small.lr.set(one("rate", "train/lr", "--t-line-3"));
      this.small.seconds.set(one("s/step", "perf/s_per_step", "--t-line-4"));
      this.small.memory.set(many(steps, x, MEMORY.filter((name) => name in steps.columns &&
        (name !== "perf/memory_gib" || "perf/memory_peak_gib" in steps.columns)), "line"));
      this.small.norm.set(one("norm", "train/grad_norm", "--t-line-5"));
      const measures = named(vals, "val/").filter((name) =>
        name !== "val/loss" && !name.startsWith("val/loss/"));
      this.small.measures.element.hidden = !measures.length;
      this.small.measures.set(many(vals, vx, measures, "dots"));
      this.placePlays(series);
    }

    /* A metric of the comparison run, dashed; empty without one. */
    otherLines(metric, part, colour) {
      if (!this.overlay.isReady) return [];
      const { series } = this.overlay, isEval = metric.startsWith("val/");
      const table = isEval ? series.validations : series.steps, y = table.get(metric);
      if (!y.length) return [];
      return [{ label: `${series.run} ${part}`.trim(), colour, x: this.axis(table, series),
        y: isEval ? y : t.smooth(y, this.view.smoothing), kind: isEval ? "dots" : "line", dash: [7, 4] }];
    }

    axisMarks(series) {
      const saved = series.markedAs("checkpoint");
      const best = saved.filter((mark) => mark.values.best).pop();
      const alerts = series.markedAs("notice").filter((mark) =>
        mark.values.level !== "info" && !isRepeated(mark, series));
      const resumes = series.markedAs("started").filter((mark) => mark.step > 0);
      const marks = (found, colour) => found.map((mark) => ({ x: this.markX(mark, series), colour,
        strong: mark === best, words: `step ${mark.step}: ${t.describeMark(mark)}` }));
      return [...marks(saved, "--t-line-3"), ...marks(resumes, "--t-line-1"),
        ...marks(series.markedAs("plan"), "--t-line-4"), ...marks(alerts, "--t-bad")];
    }

    markX(mark, series) {
      if (this.view.x === "time") return mark.time - (series.steps.get("time")[0] || mark.time);
      if (this.view.x === "epoch") return mark.step / (series.status.steps_per_epoch || 1);
      return mark.step;
    }

    placePlays(series) {
      const frame = this.loss.frame;
      for (const play of this.plays.children) {
        const x = frame ? this.markX(play.mark, series) : NaN;
        play.hidden = !frame || x < frame.x0 || x > frame.x1;
        if (!play.hidden) play.style.left = `${frame.px(x)}px`;
      }
    }
  }

  /* Whether a notice repeats an earlier one because the run was resumed. */
  function isRepeated(mark, series) {
    return series.markedAs("started").some((start) => start.step > 0 && start.step === mark.step) &&
      series.markedAs("notice").some((other) =>
        other.step < mark.step && other.values.text === mark.values.text);
  }
})();

/* Two panels of the Train tab: the learning-rate search and the benchmark of optimizations. */
(function () {
  "use strict";
  const t = window.timbre;
  const GROUPS = [["chosen", "As selected in the form"], ["ladder", "Cumulative, from none to all"],
    ["guide", "The three main options, one after another"], ["alone", "Each option alone"], ["noise", "The first row repeated"]];

  t.mountRates = function (element, trigger) {
    const panel = new RatePanel(element, trigger);
    t.whileShown(element, () => panel.refresh());
    t.refreshRates = () => setTimeout(() => panel.refresh().catch(() => {}), 300);
  };

  t.mountMeasure = function (element, trigger) {
    const panel = new MeasurePanel(element, trigger);
    t.whileShown(element, () => panel.refresh());
    t.refreshMeasurements = () => setTimeout(() => panel.refresh().catch(() => {}), 300);
  };

  function button(label, id, action, kind) {
    return t.h("button", { type: "button", class: "small " + (kind || ""), id, onclick: action }, label);
  }

  class RatePanel {
    constructor(element, trigger) {
      this.words = t.h("span", { role: "status", id: "rates-words" });
      this.stop = button("Stop", "rates-stop", () => trigger("click", { action: "stop" }));
      this.use = button("Use this rate", "rates-use", () => trigger("apply", {}), "primary");
      this.bar = t.h("div", { class: "progress", role: "progressbar", "aria-label": "Progress" }, t.h("i", {}));
      const group = new t.ChartGroup();
      group.formatX = (x) => t.number(10 ** x, 2);
      this.chart = new t.Chart(group, { title: "Loss change at each learning rate", clip: () => true });
      this.main = t.h("div", { class: "live trial" }, t.h("div", { class: "toolbar" }, this.words, this.use, this.stop),
        this.bar, this.chart.element);
      this.main.hidden = true;
      element.replaceChildren(this.main);
    }

    async refresh() {
      const found = await t.getJson("studio/rates");
      this.main.hidden = found.state === "none";
      const finding = found.finding, isRunning = found.state === "running";
      this.stop.hidden = this.bar.hidden = !isRunning;
      this.use.hidden = isRunning || !finding || finding.suggestion == null;
      this.bar.firstChild.style.width = (found.total ? 100 * found.done / found.total : 0) + "%";
      t.setText(this.words, isRunning ? `Trying rates for ${found.optimizer}: ${found.done} of ${found.total || "?"}`
        : finding ? finding.text : found.problem || "The search was stopped.");
      this.chart.element.hidden = !finding;
      const facts = finding && finding.text;
      if (!finding || facts === this.facts) return;
      this.facts = facts;
      const x = finding.rates.map((rate) => Math.log10(rate));
      const deepest = Math.max(...finding.changes.map((value) => value == null ? 0 : -value));
      const near = (values) => values.map((value) => value == null || value > deepest ? null : value);
      const marks = [["suggestion", "--t-line-3"], ["lost", "--t-bad"]].filter(([name]) => finding[name])
        .map(([name, colour]) => ({ x: Math.log10(finding[name]), colour, strong: true }));
      this.chart.set([{ label: "every step", colour: "--t-line-1", x, y: near(finding.changes), kind: "faint" },
        { label: "smoothed", colour: "--t-line-1", x, y: near(finding.smooth), kind: "line" }], marks);
    }
  }

  class MeasurePanel {
    constructor(element, trigger) {
      this.words = t.h("span", { role: "status", id: "measure-words" });
      this.stop = button("Stop and keep the results", "measure-stop", () => trigger("click", { action: "stop" }));
      this.picker = t.h("select", { "aria-label": "Measurement", id: "measure-choice",
        onchange: () => { this.chosen = this.picker.value; this.refresh(); } });
      this.machine = t.h("div", { class: "states" });
      this.rows = t.h("div", { class: "bars", id: "measure-rows" });
      this.main = t.h("div", { class: "live trial" }, t.h("div", { class: "toolbar" }, this.picker, this.words, this.stop),
        this.machine, this.rows);
      this.main.hidden = true;
      element.replaceChildren(this.main);
    }

    async refresh() {
      const found = await t.getJson("studio/measurements");
      this.main.hidden = !found.kept.length && !found.running && !found.problem;
      this.stop.hidden = !found.running;
      if (found.running && !this.wasRunning) this.chosen = null;
      this.wasRunning = found.running;
      const files = found.kept.map((one) => one.file);
      if (files.join("\n") !== this.files) {
        this.files = files.join("\n");
        this.picker.replaceChildren(...found.kept.map((one) => t.h("option", { value: one.file },
          one.made_at ? `${one.made_at}, ${one.model.family}` : "now")));
      }
      this.picker.hidden = found.kept.length < 2;
      const shown = found.kept.find((one) => one.file === this.chosen) || found.kept[0];
      const rows = shown ? shown.rows : [];
      const planned = shown && shown.model.planned;
      const isNow = found.running && shown === found.kept[0];
      t.setText(this.words, found.problem || (isNow
        ? (rows.length ? `Measured ${rows.length} of ${planned} rows.` : "Measuring the first row; each row runs in a new process.")
        : shown ? `Measured in ${t.duration(shown.seconds)}: ${shown.state}.` : "Starting."));
      const facts = JSON.stringify([shown && shown.file, rows.length, shown && shown.state]);
      if (!shown || facts === this.facts) return;
      this.facts = facts;
      const machine = { ...shown.machine, ...shown.model };
      const names = ["device", "torch", "python", "cuda", "threads", "family", "size", "batch_size", "optimizer", "clips"];
      this.machine.replaceChildren(t.h("div", {}, names.filter((name) => machine[name] != null).map((name) =>
        t.h("span", { class: "fact" }, name.replaceAll("_", " ") + ": ", t.h("b", {}, String(machine[name]))))));
      this.rows.replaceChildren(...groups(rows));
    }
  }

  /* List each row once, under its first group; bars are relative to the longest. */
  function groups(rows) {
    const longest = Math.max(...rows.map((row) => row.s_per_step || 0), 1e-9);
    const largest = Math.max(...rows.map((row) => row.peak_gib || 0), 1e-9);
    const first = rows[0], shown = new Set();
    return GROUPS.flatMap(([group, title]) => {
      const mine = rows.filter((row) => row.groups.includes(group) && !shown.has(row));
      mine.forEach((row) => shown.add(row));
      return mine.length ? [t.h("h4", {}, title), ...mine.map((row) => bar(row, first, longest, largest))] : [];
    });
  }

  function bar(row, first, longest, largest) {
    const line = (share, colour, words) => t.h("div", { class: "bar" },
      t.h("i", { style: `width:${Math.max(0.5, 60 * share)}%;background:var(${colour})` }), t.h("span", {}, words));
    if (row.state !== "done") {
      return t.h("div", { class: "bar-row" }, t.h("b", {}, row.label), t.h("span", { class: "quiet" }, `${row.state}: ${row.reason}`));
    }
    const ratio = first.s_per_step && row !== first ? `, ${t.number(first.s_per_step / row.s_per_step, 3)}x as fast` : "";
    const less = first.peak_gib && row !== first ? `, ${t.number(100 * (row.peak_gib / first.peak_gib - 1), 2)} %` : "";
    const on = Object.keys(row.boxes).map((name) => {
      const state = row.on[name] || {};
      return t.h("span", { class: "fact " + (state.on ? "on" : "missing"), title: state.detail || "" },
        name.replaceAll("_", " ") + (state.on ? " on" : " not on"));
    });
    return t.h("div", { class: "bar-row" }, t.h("b", {}, row.label),
      line(row.s_per_step / longest, "--t-line-1", `${t.number(row.s_per_step, 3)} s/step${ratio}`),
      row.peak_gib == null ? null : line(row.peak_gib / largest, "--t-line-4", `${t.number(row.peak_gib, 3)} GiB${less}`),
      on.length ? t.h("div", { class: "tries" }, on) : null);
  }
})();

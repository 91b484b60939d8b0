/* Compare two to six runs: curves in one chart, latest previews and the settings that differ. */
(function () {
  "use strict";
  const t = window.timbre;
  const COLOURS = ["--t-line-1", "--t-line-2", "--t-line-3", "--t-line-4", "--t-line-5", "--t-line-6"];
  const DASHES = [[], [8, 3], [2, 3], [8, 3, 2, 3], [12, 4], [4, 4]];
  const METRICS = [["train/loss", "Train loss"], ["val/loss", "Eval loss"], ["train/lr", "Learning rate"],
    ["train/grad_norm", "Gradient norm"], ["perf/s_per_step", "Seconds per step"],
    ["perf/memory_gib", "Memory (GiB)"]];

  t.Comparison = class {
    constructor() {
      this.runs = new Map();
      this.names = [];
      this.view = { metric: "train/loss", smoothing: 0.9, log: false, x: "step" };
      const group = new t.ChartGroup();
      group.formatX = (x) => this.view.x === "time" ? t.duration(x) : t.number(x, 6);
      this.group = group;
      this.chart = new t.Chart(group, { title: "", large: true, log: () => this.view.log });
      this.evals = new t.Chart(group, { title: "Eval loss", log: () => this.view.log });
      this.previews = t.h("div", { class: "previews" });
      this.settings = t.h("div", {});
      this.element = t.h("div", { class: "comparison" }, t.h("h3", {}, "Comparison"), this.toolbar(),
        this.chart.element, this.evals.element, this.previews, this.settings);
      this.element.hidden = true;
    }

    toolbar() {
      const metric = t.h("select", { id: "compare-metric", "aria-label": "Metric",
        onchange: () => this.look({ metric: metric.value }) },
      METRICS.map(([value, label]) => t.h("option", { value }, label)));
      const slider = t.h("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: "0.9",
        oninput: () => this.look({ smoothing: Number(slider.value) }) });
      const log = t.h("input", { type: "checkbox", onchange: () => this.look({ log: log.checked }) });
      const over = t.h("select", { "aria-label": "Horizontal axis", onchange: () => {
        this.group.setZoom(null);
        this.look({ x: over.value });
      } }, [["step", "over steps"], ["time", "over time"], ["epoch", "over epochs"]].map(
        ([value, label]) => t.h("option", { value }, label)));
      this.files = ["png", "svg"].map((kind) => t.h("a", { download: "comparison." + kind },
        kind.toUpperCase()));
      return t.h("div", { class: "toolbar" }, metric, over, t.h("label", {}, "Smoothing ", slider),
        t.h("label", {}, log, " Log scale"), this.files);
    }

    look(change) {
      Object.assign(this.view, change);
      this.draw();
    }

    /* Show these runs (at least two), and keep reading those that are training. */
    async show(names) {
      this.names = names;
      this.element.hidden = names.length < 2;
      this.offerFiles();
      // Two concurrent reads would append the same rows twice. The read in progress uses the names
      // that are chosen when it ends.
      if (names.length < 2 || this.isReading) return;
      this.isReading = true;
      try {
        await Promise.all(names.map((name) => this.read(name)));
      } catch (error) {
        return; /* one was discarded, or the server is away: the next poll tries again */
      } finally {
        this.isReading = false;
      }
      if (names.join("\n") === this.names.join("\n")) this.draw();
      else this.show(this.names);
    }

    async read(name) {
      if (!this.runs.has(name)) {
        const found = { series: new t.Series(name), config: {}, files: [] };
        found.config = await t.getJson(t.runUrl(name, "config"));
        this.runs.set(name, found);
      }
      const run = this.runs.get(name), { series } = run;
      if (series.status && !series.status.active && run.isWhole) return;
      series.take(await t.getJson(t.runUrl(name, `rows?max=1000&cursor=${encodeURIComponent(series.cursor)}`)));
      run.files = (await t.getJson(t.runUrl(name, "previews"))).files;
      run.isWhole = !series.status.active;
    }

    /* The pictures are drawn by the server: they can be had before the curves are here. */
    offerFiles() {
      const query = this.names.map((name) => "run=" + encodeURIComponent(name)).join("&");
      this.files.forEach((link, i) => {
        link.href = `studio/comparison.${["png", "svg"][i]}?${query}&metric=${encodeURIComponent(this.view.metric)}`;
      });
    }

    draw() {
      this.offerFiles();
      const found = this.names.map((name) => ({ name, ...this.runs.get(name) }));
      if (found.length < 2 || found.some((run) => !run.series || !run.series.status)) return;
      const { metric } = this.view;
      this.chart.options.title = METRICS.find(([value]) => value === metric)[1];
      t.setText(this.chart.element.querySelector(".chart-title"), this.chart.options.title);
      this.chart.set(this.lines(found, metric));
      this.evals.element.hidden = metric === "val/loss";
      this.evals.set(this.lines(found, "val/loss"));
      this.drawPreviews(found);
      const facts = JSON.stringify(this.names);
      if (facts !== this.shown) this.settings.replaceChildren(differences(found));
      this.shown = facts;
    }

    lines(found, metric) {
      const isEval = metric.startsWith("val/");
      return found.map((run, i) => {
        const table = isEval ? run.series.validations : run.series.steps;
        const y = table.get(metric);
        return { label: run.name, colour: COLOURS[i], dash: DASHES[i], x: this.axis(table, run.series),
          y: isEval ? y : t.smooth(y, this.view.smoothing), kind: isEval ? "dots" : "line" };
      });
    }

    axis(table, series) {
      if (this.view.x === "time") {
        const first = series.steps.get("time")[0] || 0;
        return table.get("time").map((time) => time - first);
      }
      if (this.view.x === "epoch") {
        return table.get("step").map((step) => step / (series.status.steps_per_epoch || 1));
      }
      return table.get("step");
    }

    /* The latest preview of each run, one below the other. */
    drawPreviews(found) {
      const facts = JSON.stringify(found.map((run) => [run.name, run.files]));
      if (facts === this.heard) return;
      this.heard = facts;
      this.previews.replaceChildren(...found.filter((run) => run.files.length).map((run) => {
        const file = run.files[run.files.length - 1];
        return t.h("div", { class: "preview" }, t.h("b", {}, run.name),
          t.previewOf(run.name, file),
          t.h("span", { class: "quiet" }, "step " + Number((file.match(/\d+/) || ["0"])[0])));
      }));
    }
  };

  /* A table of the settings that differ between the runs. */
  function differences(found) {
    const flat = found.map((run) => flatten(run.config, ""));
    const names = [...new Set(flat.flatMap((values) => Object.keys(values)))].sort();
    const differing = names.filter((name) => new Set(flat.map((values) => values[name])).size > 1);
    if (!differing.length) return t.h("p", { class: "quiet" }, "All settings are the same.");
    return t.h("div", { class: "scroll" }, t.h("table", { class: "runs-table differences" },
      t.h("thead", {}, t.h("tr", {}, t.h("th", {}, "Setting"),
        found.map((run) => t.h("th", {}, run.name)))),
      t.h("tbody", {}, differing.map((name) => t.h("tr", {}, t.h("td", {}, name),
        flat.map((values) => t.h("td", {}, values[name] == null ? "-" : values[name])))))));
  }

  function flatten(values, prefix) {
    const found = {};
    for (const [name, value] of Object.entries(values)) {
      if (value && typeof value === "object") {
        const isEmpty = !Object.keys(value).length;
        Object.assign(found, isEmpty && prefix === "optimizations." ? { [prefix + name]: "on" }
          : flatten(value, prefix + name + "."));
      } else found[prefix + name] = value === "" ? "(empty)" : String(value);
    }
    return found;
  }
})();

/* Where the time of a step goes: one stacked bar of its parts, and what stands out in words. */
(function () {
  "use strict";
  const t = window.timbre;
  const STEPS = 100;
  const PARTS = [
    ["data", "Waiting for data", "perf/data_wait_s", "--t-line-2"],
    ["forward", "Forward", "perf/forward_s", "--t-line-1"],
    ["backward", "Backward", "perf/backward_s", "--t-line-3"],
    ["optimizer", "Optimizer", "perf/optimizer_s", "--t-line-4"],
    ["rest", "Rest", null, "--t-quiet"],
  ];
  const MUCH = 0.25;

  t.Breakdown = class {
    constructor() {
      this.bar = t.h("div", { class: "parts-bar", role: "img" });
      this.key = t.h("div", { class: "legend" });
      this.words = t.h("p", { class: "parts-words", id: "live-culprit" });
      this.element = t.h("section", { class: "parts", id: "live-breakdown" },
        t.h("div", { class: "parts-head" }, t.h("b", { class: "chart-title" }, "Where a step's time goes"),
          this.key), this.bar, this.words);
      this.pieces = PARTS.map(([, , , colour]) => t.h("i", { style: `background: var(${colour})` }));
      this.labels = PARTS.map(([, label, , colour]) => t.h("span", {},
        t.h("i", { style: `background: var(${colour})` }), t.h("b", {}, label), t.h("em", {})));
      this.bar.append(...this.pieces);
      this.key.append(...this.labels);
      this.element.hidden = true;
    }

    /* Show the medians of the newest steps; runs of a device that tells no times show nothing. */
    show(series) {
      const found = t.splitStep(series.steps);
      this.element.hidden = !found;
      if (!found) return;
      PARTS.forEach(([name], i) => {
        const percent = 100 * found.shares[name];
        this.pieces[i].style.width = percent.toFixed(2) + "%";
        t.setText(this.labels[i].children[2],
          `${percent.toFixed(0)} % (${t.number(1000 * found.seconds[name], 3)} ms)`);
      });
      const words = culprit(found.shares, series);
      t.setText(this.words, words);
      this.bar.setAttribute("aria-label", words);
    }
  };

  /* The median seconds of each part over the newest steps, and their shares of a step. */
  t.splitStep = function (table) {
    if (!("perf/forward_s" in table.columns)) return null;
    const newest = (name) => middle(table.get(name).slice(-STEPS).filter((value) => value != null));
    const seconds = {};
    let told = 0;
    for (const [name, , metric] of PARTS) {
      if (metric) told += seconds[name] = newest(metric);
    }
    const whole = Math.max(newest("perf/s_per_step"), told);
    if (!(whole > 0)) return null;
    seconds.rest = whole - told;
    const shares = {};
    for (const name of Object.keys(seconds)) shares[name] = seconds[name] / whole;
    return { seconds, shares };
  };

  function culprit(shares, series) {
    const percent = (share) => `${(100 * share).toFixed(0)} %`;
    if (shares.data >= MUCH) {
      return `Waiting for data takes ${percent(shares.data)} of a step: put the cache of features ` +
        "(TIMBRE_CACHE) on a faster disk, or leave a processor core free for making batches.";
    }
    if (shares.optimizer >= MUCH) {
      return `The optimizer takes ${percent(shares.optimizer)} of a step: gradient accumulation lets it ` +
        "run less often, and AdamW is the fastest of them.";
    }
    if (shares.rest >= MUCH) {
      return `${percent(shares.rest)} of a step go into neither the model nor its optimizer: ` +
        "gradient clipping, averaged weights and telling of the step. Larger batches make it matter less.";
    }
    const model = shares.forward + shares.backward;
    const words = `The model itself takes ${percent(model)} of a step: nothing stands in its way.`;
    return isRecomputing(series) ? words + " Gradient checkpointing computes its forward pass twice; " +
      "where memory allows, a step without it is shorter." : words;
  }

  function isRecomputing(series) {
    const states = (series.started && series.started.values.optimizations) || {};
    return Boolean(states.gradient_checkpointing && states.gradient_checkpointing.on);
  }

  function middle(values) {
    if (!values.length) return 0;
    const sorted = [...values].sort((a, b) => a - b);
    return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
  }
})();

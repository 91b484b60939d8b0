/* Step time breakdown: one stacked bar of the parts of a step, and a sentence about the bottleneck. */
(function () {
  "use strict";
  const t = window.timbre;
  const STEPS = 100;  // Newest steps to take medians of; chosen by hand.
  const PARTS = [
    ["data", "Waiting for data", "perf/data_wait_s", "--t-line-2"],
    ["forward", "Forward", "perf/forward_s", "--t-line-1"],
    ["backward", "Backward", "perf/backward_s", "--t-line-3"],
    ["optimizer", "Optimizer", "perf/optimizer_s", "--t-line-4"],
    ["rest", "Other", null, "--t-quiet"],
  ];
  const MUCH = 0.25;  // A part above this share is called a bottleneck; chosen by hand.

  t.Breakdown = class {
    constructor() {
      this.bar = t.h("div", { class: "parts-bar", role: "img" });
      this.key = t.h("div", { class: "legend" });
      this.words = t.h("p", { class: "parts-words", id: "live-culprit" });
      this.element = t.h("section", { class: "parts", id: "live-breakdown" },
        t.h("div", { class: "parts-head" }, t.h("b", { class: "chart-title" }, "Step time breakdown"),
          this.key), this.bar, this.words);
      this.pieces = PARTS.map(([, , , colour]) => t.h("i", { style: `background: var(${colour})` }));
      this.labels = PARTS.map(([, label, , colour]) => t.h("span", {},
        t.h("i", { style: `background: var(${colour})` }), t.h("b", {}, label), t.h("em", {})));
      this.bar.append(...this.pieces);
      this.key.append(...this.labels);
      this.element.hidden = true;
    }

    /* Show the medians of the newest steps; hidden if the device does not report times. */
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
      return `Waiting for data takes ${percent(shares.data)} of a step: put the feature cache ` +
        "(TIMBRE_CACHE) on a faster disk, or leave a CPU core free for loading batches.";
    }
    if (shares.optimizer >= MUCH) {
      return `The optimizer takes ${percent(shares.optimizer)} of a step: gradient accumulation runs ` +
        "it less often, and AdamW is the fastest optimizer.";
    }
    if (shares.rest >= MUCH) {
      return `${percent(shares.rest)} of a step is spent outside the model and the optimizer: ` +
        "gradient clipping, averaged weights and logging. Larger batches reduce this share.";
    }
    const model = shares.forward + shares.backward;
    const words = `The model itself takes ${percent(model)} of a step: there is no bottleneck.`;
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

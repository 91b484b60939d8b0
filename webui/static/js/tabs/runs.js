/* The run table with the queue and the trash, the recent runs and the list of previews. */
(function () {
  "use strict";
  const t = window.timbre;
  const SPOKEN = "The same sentence during training";
  const DRAWN = "Generated codes during training, next to the recorded ones";
  const HEADS = ["Compare", "Run", "State", "Step", "Best eval", "s/step", "Peak memory", "Model",
    "Created", "Actions"];

  const NUMBERS = ["Step", "Best eval", "s/step", "Peak memory"];

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
        list.replaceChildren(t.h("p", { class: "quiet" }, "No runs yet."));
      }
    });
  };

  t.mountRuns = function (element, trigger) {
    const panel = new RunsPanel(element, trigger);
    refreshWhileShown(element, () => panel.refresh());
  };

  class RunsPanel {
    constructor(element, trigger) {
      this.trigger = trigger;
      this.runs = [];
      this.chosen = new Set();
      this.rows = new Map();
      this.asked = this.answered = 0;
      this.filter = t.h("input", { type: "search", placeholder: "Filter", id: "runs-filter",
        "aria-label": "Filter by name, state, clips, model or optimizer", oninput: () => this.draw() });
      this.words = t.h("span", { class: "quiet", role: "status" });
      this.body = t.h("tbody", {});
      this.queue = t.h("section", { class: "queue", id: "queue" });
      this.undo = t.h("div", { class: "notice undo", role: "status", id: "undo" });
      this.undo.hidden = true;
      this.trash = new t.TrashBox((action, run) => this.press(action, run));
      this.comparison = new t.Comparison();
      element.replaceChildren(this.undo, this.queue,
        t.h("div", { class: "toolbar" }, this.filter, this.words),
        t.h("div", { class: "scroll" }, t.h("table", { class: "runs-table" },
          t.h("thead", {}, t.h("tr", {}, HEADS.map((name, i) => t.h("th", {},
            t.h("span", { class: i && i < HEADS.length - 1 ? "" : "sr-only" }, name))))), this.body)),
        this.comparison.element, this.trash.element);
    }

    async refresh() {
      const turn = this.asked += 1;
      const answer = await t.getJson("studio/runs");
      // Requests can overlap; ignore an answer that is older than one already shown.
      if (turn < this.answered) return;
      this.answered = turn;
      this.runs = answer.runs;
      const names = this.runs.map((run) => run.name);
      for (const name of this.chosen) if (!names.includes(name)) this.chosen.delete(name);
      this.waiting = answer.queue.names;
      this.drawQueue(answer.queue);
      this.draw();
      this.comparison.show([...this.chosen]);
      await this.trash.refresh(answer.discarded);
      this.offerUndo();
    }

    /* Send an action to the server, and refresh soon after to show its effect. */
    press(action, run, count) {
      this.trigger("click", { action, run, count: count || "" });
      for (const ms of [300, 1200]) setTimeout(() => this.refresh().catch(() => {}), ms);
    }

    draw() {
      const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const shown = this.runs.filter((run) => words.every((word) => searched(run).includes(word)));
      const rows = shown.map((run) => this.row(run));
      const isSame = rows.length === this.body.children.length &&
        rows.every((row, i) => row === this.body.children[i]);
      if (!isSame) this.body.replaceChildren(...rows);
      if (!rows.length) this.body.replaceChildren(t.h("tr", {}, t.h("td", { colspan: "10" },
        this.runs.length ? "No matching runs."
          : "No runs yet. Train the demo voice on the Start tab, or your own on the Train tab.")));
      const count = this.chosen.size;
      t.setText(this.words, count >= 6 ? "You can compare at most six runs." :
        count === 1 ? "Select one more run to compare." : "Select two to six runs to compare.");
    }

    /* The row of a run; the same element as long as its content is unchanged. */
    row(run) {
      const place = (this.waiting || []).indexOf(run.name);
      const facts = JSON.stringify([run, place]);
      const known = this.rows.get(run.name);
      // Keep a row whose button is asking for confirmation, so that the second click hits it.
      if (known && (known.facts === facts || known.element.querySelector(".sure"))) return known.element;
      const element = this.makeRow(run, place, known);
      this.rows.set(run.name, { facts, element });
      return element;
    }

    makeRow(run, place, known) {
      const tick = t.h("input", { type: "checkbox", "aria-label": "Compare " + run.name,
        checked: this.chosen.has(run.name), onchange: () => {
          if (tick.checked && this.chosen.size < 6) this.chosen.add(run.name);
          else this.chosen.delete(run.name);
          tick.checked = this.chosen.has(run.name);
          this.draw();
          this.comparison.show([...this.chosen]);
        } });
      const two = (first, second) => [t.h("div", {}, first), t.h("div", { class: "quiet" }, second)];
      const state = place < 0 ? t.chip(run.state, run.symbol) : t.chip("queued", place + 1 + ".");
      const cells = [tick, two(t.h("b", {}, run.name), run.dataset || ""), state,
        `${run.step} / ${run.total_steps}`, t.number(run.best_eval),
        t.number(run.median_s_per_step, 3),
        run.peak_memory_gib == null ? "-" : t.number(run.peak_memory_gib, 3) + " GiB",
        two(run.family || "-", [run.optimizer, ...(run.optimizations || [])].join(", ")),
        run.created_at ? t.clock(run.created_at) : "-", this.buttons(run, place, known)];
      return t.h("tr", { "data-run": run.name }, cells.map((cell, i) =>
        t.h("td", { "data-label": NUMBERS.includes(HEADS[i]) ? HEADS[i] : null }, cell)));
    }

    buttons(run, place, known) {
      const can = (action) => run.actions.includes(action);
      const give = (bf16) => () => this.trigger("download", { run: run.name, bf16 });
      const isOpen = Boolean(known && known.element.querySelector("details[open]"));
      const file = (label, path) => t.h("a", { href: t.runUrl(run.name, path),
        download: run.name + "." + path.split(".").pop() }, label);
      return [t.h("span", { class: "links" }, openButton(run),
        can("listen") ? button("Listen", () => listen(run)) : null,
        can("resume") && place < 0 ? button("Resume", () => resume(this.trigger, run)) : null),
      t.h("details", { class: "more-links", open: isOpen }, t.h("summary", {}, "More"),
        t.h("div", { class: "links" },
          button("Copy settings to Train", () => this.trigger("apply", { run: run.name })),
          can("queue") && place < 0 ? button("Add to queue", () => this.press("queue", run.name)) : null,
          run.step ? button("Export voice", give("false")) : null,
          run.step && run.bf16 ? button("Export voice in bf16", give("true")) : null,
          can("discard") ? t.confirmButton("Delete", "Move to trash?", () =>
            this.discard(run.name)) : null),
        t.h("div", { class: "links" }, t.h("span", { class: "quiet" }, "Download"),
          file("CSV", "metrics.csv"), file("JSON", "metrics.json"),
          file("PNG", "curves.png"), file("SVG", "curves.svg")))];
    }

    discard(name) {
      this.discarding = name;
      this.press("discard", name);
    }

    /* Offer to undo the last deletion. */
    offerUndo() {
      const last = this.trash.entries[0];
      if (this.discarding && last && last.name === this.discarding) {
        this.discarding = null;
        this.undo.replaceChildren(`${last.name} was moved to the trash. `, button("Undo", () => {
          this.undo.hidden = true;
          this.press("give_back", last.key);
        }));
        this.undo.hidden = false;
      } else if (!this.trash.entries.length) {
        this.undo.hidden = true;
      }
    }

    drawQueue(queue) {
      const facts = JSON.stringify(queue);
      if (facts === this.queueFacts) return;
      this.queueFacts = facts;
      this.queue.hidden = !queue.names.length && !queue.paused;
      const items = queue.names.map((name, i) => t.h("li", { "data-run": name }, t.h("b", {}, name),
        t.h("span", { class: "space" }),
        button("Move up", () => this.press("earlier", name), i === 0, `Move ${name} up`),
        button("Move down", () => this.press("later", name), i === queue.names.length - 1, `Move ${name} down`),
        button("Remove", () => this.press("unqueue", name), false, `Remove ${name} from the queue`)));
      this.queue.replaceChildren(t.h("div", { class: "toolbar" }, t.h("h3", {}, "Queue"),
        t.h("span", { class: "quiet" }, queue.paused ? "Paused: no new runs start."
          : "The next run starts when no run is training."),
        queue.paused ? button("Resume", () => this.press("continue", ""))
          : button("Pause", () => this.press("pause", ""))), t.h("ol", {}, items));
    }
  }

  function searched(run) {
    return [run.name, run.state, run.dataset, run.family, run.optimizer,
      ...(run.optimizations || [])].join(" ").toLowerCase();
  }

  let listened = null;

  /* The previews of the run on the Listen tab, oldest first. */
  t.mountPreviews = function (element) {
    const list = t.h("div", { class: "previews" }), title = t.h("h3", {}, SPOKEN);
    element.replaceChildren(title, list);
    t.drawPreviews = async () => {
      const answer = listened ? await t.getJson(t.runUrl(listened, "previews")).catch(() => null) : null;
      const files = answer ? answer.files : [];
      t.setText(title, files.length && files.every((file) => file.endsWith(".svg")) ? DRAWN : SPOKEN);
      list.replaceChildren(...files.map((file) => t.h("div", { class: "preview" },
        t.h("b", {}, "step " + (Number((file.match(/\d+/) || [""])[0]) || file)),
        t.previewOf(listened, file))));
      if (!files.length) list.replaceChildren(t.h("p", { class: "quiet" }, "No previews yet."));
    };
    t.drawPreviews();
  };

  /* Choose the run of the Listen tab; returns it, so that Gradio passes it to the server. */
  t.listenTo = function (run) {
    listened = run;
    if (t.drawPreviews) t.drawPreviews();
    return run;
  };

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

  function button(label, onclick, disabled, spoken) {
    return t.h("button", { type: "button", class: "small", onclick, disabled: Boolean(disabled),
      "aria-label": spoken }, label);
  }

  /* Refresh now and every few seconds while the element is visible. */
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

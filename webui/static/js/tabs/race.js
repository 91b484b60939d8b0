/* The race panel: progress, curves, the rates that were tried, the result table and the verdict. */
(function () {
  "use strict";
  const t = window.timbre;
  const COLOURS = ["--t-line-1", "--t-line-2", "--t-line-3", "--t-line-4", "--t-line-5", "--t-line-6"];
  const DASHES = [[], [8, 3], [2, 3]];
  const LABELS = { "race.md": "Table (Markdown)", "race.csv": "Table (CSV)",
    "results.json": "All numbers (JSON)", "race.png": "Image (PNG)" };
  let chosen = "";

  t.mountRace = function (element, trigger) {
    const panel = new RacePanel(element, trigger);
    t.whileShown(element, () => panel.refresh());
    /* Called after a start: show the running race, else the newest. */
    t.showRace = () => {
      chosen = "";
      panel.refresh().catch(() => {});
    };
  };

  /* Call `refresh` periodically while the element is visible. */
  t.whileShown = function (element, refresh) {
    const isShown = () => element.isConnected && element.offsetParent !== null && !document.hidden;
    const run = () => { if (isShown()) refresh().catch(() => {}); };
    new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) run();
    }).observe(element);
    setInterval(run, 2 * t.pollMs);
    run();
  };

  class RacePanel {
    constructor(element, trigger) {
      this.trigger = trigger;
      this.picker = t.h("select", { id: "race-choice", "aria-label": "Race", translate: "no",
        onchange: () => { chosen = this.picker.value; this.refresh(); } });
      this.chip = t.h("span", {});
      this.words = t.h("span", { class: "progress-words", id: "race-words", role: "status" });
      this.stop = this.button("Stop and save", "stop", "stop");
      this.resume = this.button("Resume", "primary", "resume");
      this.bar = t.h("div", { class: "progress", role: "progressbar", "aria-label": "Progress" }, t.h("i", {}));
      this.problem = t.h("div", { class: "notice warning", role: "alert", id: "race-problem" });
      this.about = t.h("div", { class: "states" });
      this.verdict = t.h("ul", { class: "verdict", id: "race-verdict" });
      const chart = (title, words) => {
        const group = new t.ChartGroup();
        group.formatX = words;
        return new t.Chart(group, { title });
      };
      this.bySteps = chart("Validation loss over steps", (x) => t.number(x, 6));
      this.bySeconds = chart("Validation loss over seconds of training", (x) => t.duration(x));
      this.tried = t.h("div", { id: "race-tried" });
      this.table = t.h("div", { id: "race-table" });
      this.caveats = t.h("details", { class: "trash" }, t.h("summary", {}, "Limitations"),
        t.h("ul", { class: "verdict" }));
      this.files = t.h("div", { class: "toolbar", id: "race-files" });
      this.empty = t.h("p", { class: "quiet" }, "No race yet. Start one above.");
      this.main = t.h("div", { class: "live" },
        t.h("div", { class: "live-head" }, this.picker, this.chip, t.h("span", { class: "space" }),
          this.stop, this.resume), this.bar, this.words, this.problem, this.about, this.verdict,
        t.h("div", { class: "charts two" }, this.bySteps.element, this.bySeconds.element),
        this.table, this.files, this.tried, this.caveats);
      this.main.hidden = true;
      element.replaceChildren(this.empty, this.main);
    }

    button(label, kind, action) {
      return t.h("button", { type: "button", class: kind, id: "race-" + action, onclick: () => {
        this.trigger("click", { action, race: chosen });
        for (const ms of [400, 1500]) setTimeout(() => this.refresh().catch(() => {}), ms);
      } }, label);
    }

    async refresh() {
      const answer = await t.getJson("studio/races");
      if (!answer.races.includes(chosen)) chosen = answer.running || answer.races[0] || "";
      const offered = [...this.picker.options].map((option) => option.value);
      if (offered.join("\n") !== answer.races.join("\n")) {
        this.picker.replaceChildren(...answer.races.map((name) => t.h("option", { value: name }, name)));
      }
      this.picker.value = chosen;
      this.empty.hidden = Boolean(chosen);
      this.main.hidden = !chosen;
      if (!chosen) return;
      const race = await t.getJson("studio/races/" + encodeURIComponent(chosen));
      if (race.name === chosen) this.show(race);
    }

    show(race) {
      this.chip.replaceChildren(t.chip(race.state));
      this.stop.hidden = race.state !== "running";
      this.resume.hidden = race.state !== "stopped" && race.state !== "created";
      const share = race.running && race.running.steps ? race.running.step / race.running.steps : 0;
      const percent = race.total ? Math.min(100, 100 * (race.done + share) / race.total) : 0;
      this.bar.firstChild.style.width = percent + "%";
      this.bar.setAttribute("aria-valuenow", Math.round(percent));
      t.setText(this.words, progressWords(race));
      this.problem.hidden = !race.problem;
      t.setText(this.problem, race.problem || "");
      const facts = JSON.stringify([race.done, race.state, race.name, race.files]);
      if (facts === this.facts) return;
      this.facts = facts;
      this.showAbout(race);
      this.draw(race);
      this.tried.replaceChildren(triedTable(race));
      const report = race.report;
      this.verdict.replaceChildren(...(report ? report.verdict : []).map((line, i) =>
        t.h("li", { class: i < 2 ? "headline" : "" }, line)));
      this.table.replaceChildren(...(report ? [resultTable(report.rows)] : []));
      this.caveats.hidden = !report;
      this.caveats.lastChild.replaceChildren(...(report ? report.caveats : []).map((line) => t.h("li", {}, line)));
      this.files.replaceChildren(...race.files.map((file) => t.h("a", {
        href: `studio/races/${encodeURIComponent(race.name)}/files/${file}`, download: `${race.name}-${file}`,
      }, LABELS[file])));
    }

    showAbout(race) {
      const about = race.about;
      const facts = [["model", about.family], ["batch", about.batch_size], ["schedule", about.schedule],
        ["seeds", about.seeds.join(", ")], ["steps per run", race.steps || about.most_steps || "from the time limit"],
        ["minutes", about.minutes]].filter(([, value]) => value != null);
      this.about.replaceChildren(t.h("div", {}, facts.map(([name, value]) =>
        t.h("span", { class: "fact" }, name + ": ", t.h("b", {}, String(value))))));
    }

    draw(race) {
      const lines = (clock, over) => race.entrants.flatMap((entrant, i) => {
        const own = entrant.runs.filter((run) => run.clock === clock);
        const runs = own.length ? own : entrant.runs.filter((run) => run.clock === "steps");
        return runs.filter((run) => run.losses.length).map((run, number) => ({
          label: number ? "" : entrant.name, colour: COLOURS[i % 6], dash: DASHES[Math.floor(i / 6) % 3],
          x: run[over], y: run.losses, kind: "line" }));
      });
      this.bySteps.set(lines("steps", "steps"));
      this.bySeconds.set(lines("seconds", "seconds"));
    }
  }

  function progressWords(race) {
    // The number of runs is unknown until the learning rates have been found.
    const isKnown = race.state === "finished" || race.steps;
    const words = [isKnown ? `${race.done} of ${race.total} runs`
      : `${race.done} of at least ${race.total} runs`];
    const now = race.running;
    if (now) {
      words.push(`${now.entrant} ${t.number(now.value, 3)}, seed ${now.seed}: ${now.what}`,
        `step ${now.step} of ${now.steps}`);
    }
    return words.join("   -   ");
  }

  function triedTable(race) {
    const rows = race.entrants.filter((entrant) => entrant.sweep.length);
    if (!rows.length) return t.h("span", {});
    const cell = ([value, loss, state], isChosen) => t.h("span", { class: "fact" + (isChosen ? " on" : "") },
      t.number(value, 3) + ": ", t.h("b", {}, state === "finished" ? t.number(loss, 4) : state));
    return t.h("details", { class: "trash", open: !race.report }, t.h("summary", {}, "Learning rates tried in short runs"),
      t.h("div", { class: "scroll" }, t.h("table", { class: "runs-table" }, t.h("tbody", {},
        rows.map((entrant) => t.h("tr", {}, t.h("td", {}, entrant.name), t.h("td", {}, entrant.knob),
          t.h("td", {}, t.h("div", { class: "tries" },
            entrant.sweep.map((one) => cell(one, one[0] === entrant.value))))))))));
  }

  function resultTable(rows) {
    const heads = ["Optimizer", "Rate", "Loss at equal steps", "", "Loss at equal time", "", "s/step",
      "Optimizer's share", "Memory (GiB)", "Diverged"];
    const percent = (share) => share == null ? "-" : t.number(100 * share, 3) + " %";
    return t.h("div", { class: "scroll" }, t.h("table", { class: "runs-table race-table" },
      t.h("thead", {}, t.h("tr", {}, heads.map((name) => t.h("th", {}, name)))),
      t.h("tbody", {}, rows.map((row) => t.h("tr", {}, [
        t.h("b", {}, row.entrant + (row.options ? ` (${row.options})` : "")),
        `${row.knob} ${t.number(row.value, 3)}`,
        `${t.number(row.loss_at_steps, 4)} (${row.steps} steps)`, row.at_steps,
        `${t.number(row.loss_at_seconds, 4)} (${row.steps_for_seconds} steps)`, row.at_seconds,
        t.number(row.s_per_step, 3), percent(row.optimizer_share), t.number(row.peak_memory_gib, 3), row.diverged,
      ].map((cell) => t.h("td", {}, cell)))))));
  }
})();

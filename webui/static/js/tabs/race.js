/* The race panel: progress, curves, the rates that were tried, the result table and the verdict. */
import { Changed, button, chip, fact, h, offerChoices, progressBar, refreshSoon, setProgress, table,
  whileShown } from "../base/dom.js";
import { duration, number } from "../base/format.js";
import { settings } from "../base/page.js";
import { getJson } from "../base/server.js";
import { setText } from "../base/translations.js";
import { COLOURS, Chart, ChartGroup } from "../charts/chart.js";
import { MEMORY, S_PER_STEP, describeMetric } from "../charts/metrics.js";

const DASHES = [[], [8, 3], [2, 3]];
/** @type {Record<string, string>} */
const FILES = { "race.md": "Table (Markdown)", "race.csv": "Table (CSV)",
  "results.json": "All numbers (JSON)", "race.png": "Image (PNG)" };
/** @type {RacePanel | null} */
let panel = null;

/** @param {HTMLElement} element @param {Trigger} trigger */
export function mountRace(element, trigger) {
  const shown = panel = new RacePanel(element, trigger);
  whileShown(element, 2 * settings.pollMs, () => shown.refresh());
}

/** Called after a start: show the running race, else the newest. */
export function showRace() {
  panel?.choose("");
}

class RacePanel {
  chosen = "";
  shown = new Changed();

  /** @param {HTMLElement} element @param {Trigger} trigger */
  constructor(element, trigger) {
    this.trigger = trigger;
    this.picker = h("select", { id: "race-choice", "aria-label": "Race", translate: "no",
      onchange: () => { this.choose(this.picker.value); } });
    this.chip = h("span");
    this.words = h("span", { class: "progress-words", id: "race-words", role: "status" });
    this.stop = this.button("Stop and save", "stop", "stop");
    this.resume = this.button("Resume", "primary", "resume");
    this.bar = progressBar();
    this.problem = h("div", { class: "notice warning", role: "alert", id: "race-problem" });
    this.about = h("div", { class: "states" });
    this.verdict = h("ul", { class: "verdict", id: "race-verdict" });
    this.bySteps = new Chart(new ChartGroup(), { title: "Validation loss over steps" });
    this.bySeconds = new Chart(new ChartGroup(duration), { title: "Validation loss over seconds of training" });
    this.tried = h("div", { id: "race-tried" });
    this.table = h("div", { id: "race-table" });
    this.caveatList = h("ul", { class: "verdict" });
    this.caveats = h("details", { class: "trash" }, h("summary", {}, "Limitations"), this.caveatList);
    this.files = h("div", { class: "toolbar", id: "race-files" });
    this.empty = h("p", { class: "quiet" }, "No race yet. Start one above.");
    this.main = h("div", { class: "live", hidden: true },
      h("div", { class: "live-head" }, this.picker, this.chip, h("span", { class: "space" }), this.stop,
        this.resume), this.bar, this.words, this.problem, this.about, this.verdict,
      h("div", { class: "charts two" }, this.bySteps.element, this.bySeconds.element),
      this.table, this.files, this.tried, this.caveats);
    element.replaceChildren(this.empty, this.main);
  }

  /** @param {string} label @param {string} kind @param {string} action */
  button(label, kind, action) {
    return button(label, () => {
      this.trigger("click", { action, race: this.chosen });
      refreshSoon(() => this.refresh(), 400, 1500);
    }, { class: kind, id: "race-" + action });
  }

  /** @param {string} name */
  choose(name) {
    this.chosen = name;
    refreshSoon(() => this.refresh(), 0);
  }

  async refresh() {
    const answer = await getJson("studio/races");
    if (!answer.races.includes(this.chosen)) this.chosen = answer.running || answer.races[0] || "";
    offerChoices(this.picker, answer.races);
    this.picker.value = this.chosen;
    this.empty.hidden = Boolean(this.chosen);
    this.main.hidden = !this.chosen;
    if (!this.chosen) return;
    /** @type {Race} */
    const race = await getJson("studio/races/" + encodeURIComponent(this.chosen));
    if (race.name === this.chosen) this.show(race);
  }

  /** @param {Race} race */
  show(race) {
    this.chip.replaceChildren(chip(race.state));
    this.stop.hidden = race.state !== "running";
    this.resume.hidden = race.state !== "stopped" && race.state !== "created";
    setProgress(this.bar, percentOf(race));
    setText(this.words, progressWords(race));
    this.problem.hidden = !race.problem;
    setText(this.problem, race.problem || "");
    if (!this.shown.by(race.done, race.state, race.name, race.files)) return;
    this.showAbout(race);
    this.bySteps.set(linesOf(race, "steps"));
    this.bySeconds.set(linesOf(race, "seconds"));
    this.tried.replaceChildren(triedTable(race));
    const { verdict, rows, caveats } = race.report || { verdict: [], rows: [], caveats: [] };
    this.verdict.replaceChildren(...verdict.map((line, i) => h("li", { class: i < 2 ? "headline" : "" }, line)));
    this.table.replaceChildren(...(race.report ? [resultTable(rows)] : []));
    this.caveats.hidden = !race.report;
    this.caveatList.replaceChildren(...caveats.map((line) => h("li", {}, line)));
    this.files.replaceChildren(...race.files.map((file) => h("a", {
      href: `studio/races/${encodeURIComponent(race.name)}/files/${file}`, download: `${race.name}-${file}`,
    }, FILES[file])));
  }

  /** @param {Race} race */
  showAbout({ about, steps }) {
    /** @type {[string, unknown][]} */
    const facts = [["model", about.family], ["batch", about.batch_size], ["schedule", about.schedule],
      ["seeds", about.seeds.join(", ")], ["steps per run", steps || about.most_steps || "from the time limit"],
      ["minutes", about.minutes]];
    this.about.replaceChildren(h("div", {}, facts.filter(([, value]) => value != null)
      .map(([name, value]) => fact(name, value))));
  }
}

/** @param {Race} race */
export function percentOf({ running, total, done }) {
  const share = running?.steps ? running.step / running.steps : 0;
  return total ? Math.min(100, 100 * (done + share) / total) : 0;
}

/** The curves of all runs; one that was not run for seconds is drawn from its run for steps.
 * @param {Race} race @param {"steps" | "seconds"} clock @returns {Line[]} */
function linesOf(race, clock) {
  return race.entrants.flatMap((entrant, i) => {
    const own = entrant.runs.filter((run) => run.clock === clock);
    const runs = own.length ? own : entrant.runs.filter((run) => run.clock === "steps");
    return runs.filter((run) => run.losses.length).map((run, seed) => ({
      label: seed ? "" : entrant.name, colour: COLOURS[i % COLOURS.length], x: run[clock], y: run.losses,
      dash: DASHES[Math.floor(i / COLOURS.length) % DASHES.length], kind: "line" }));
  });
}

/** @param {Race} race */
export function progressWords(race) {
  // The number of runs is unknown until the learning rates have been found.
  const isKnown = race.state === "finished" || race.steps;
  const words = [isKnown ? `${race.done} of ${race.total} runs` : `${race.done} of at least ${race.total} runs`];
  const now = race.running;
  if (now) {
    words.push(`${now.entrant} ${number(now.value, 3)}, seed ${now.seed}: ${now.what}`,
      `step ${now.step} of ${now.steps}`);
  }
  return words.join("   -   ");
}

/** @param {Race} race */
function triedTable(race) {
  const rows = race.entrants.filter((entrant) => entrant.sweep.length);
  if (!rows.length) return h("span");
  return h("details", { class: "trash", open: !race.report }, h("summary", {}, "Learning rates tried in short runs"),
    table("", [], rows.map(({ name, knob, sweep, value: chosen }) => [name, knob,
      h("div", { class: "tries" }, sweep.map(([value, loss, state]) => h("span",
        { class: "fact" + (value === chosen ? " on" : "") }, number(value, 3) + ": ",
        h("b", {}, state === "finished" ? number(loss, 4) : state))))])));
}

/** @param {RaceRow[]} rows */
function resultTable(rows) {
  const heads = ["Optimizer", "Rate", "Loss at equal steps", "", "Loss at equal time", "",
    describeMetric(S_PER_STEP).label, "Optimizer's share", describeMetric(MEMORY).title, "Diverged"];
  return table("race-table", heads, rows.map((row) => [
    h("b", {}, row.entrant + (row.options ? ` (${row.options})` : "")), `${row.knob} ${number(row.value, 3)}`,
    `${number(row.loss_at_steps, 4)} (${row.steps} steps)`, row.at_steps,
    `${number(row.loss_at_seconds, 4)} (${row.steps_for_seconds} steps)`, row.at_seconds,
    number(row.s_per_step, 3), row.optimizer_share == null ? "-" : number(100 * row.optimizer_share, 3) + " %",
    number(row.peak_memory_gib, 3), String(row.diverged)]));
}

/* The run table with the queue and the trash. */
import { Changed, chip, confirmButton, h, refreshSoon, smallButton, whileShown } from "../base/dom.js";
import { clock, number } from "../base/format.js";
import { settings } from "../base/page.js";
import { getJson, runUrl } from "../base/server.js";
import { setText } from "../base/translations.js";
import { Comparison } from "../charts/compare.js";
import { MEMORY_PEAK, S_PER_STEP, describeMetric } from "../charts/metrics.js";
import { mainButtons } from "./recent.js";
import { TrashBox } from "./trash.js";

const MOST_COMPARED = 6;  // As many as there are colours.
const REFRESH_MS = 4 * settings.pollMs;
const FILES = ["metrics.csv", "metrics.json", "curves.png", "curves.svg"];

/** @param {HTMLElement} element @param {Trigger} trigger */
export function mountRuns(element, trigger) {
  const panel = new RunsPanel(element, trigger);
  whileShown(element, REFRESH_MS, () => panel.refresh());
}

class RunsPanel {
  /** @type {RunRow[]} */
  runs = [];
  /** @type {Set<string>} */
  chosen = new Set();
  /** @type {string[]} */
  waiting = [];
  /** The drawn rows, so that one that has not changed stays. @type {Map<string, { facts: string, element: HTMLElement }>} */
  rows = new Map();
  asked = 0;
  answered = 0;
  queueShown = new Changed();
  discarding = "";

  /** @param {HTMLElement} element @param {Trigger} trigger */
  constructor(element, trigger) {
    this.trigger = trigger;
    this.filter = h("input", { type: "search", placeholder: "Filter", id: "runs-filter",
      "aria-label": "Filter by name, state, clips, model or optimizer", oninput: () => this.draw() });
    this.words = h("span", { class: "quiet", role: "status" });
    this.body = h("tbody");
    this.queue = h("section", { class: "queue", id: "queue" });
    this.undo = h("div", { class: "notice undo", role: "status", id: "undo", hidden: true });
    this.trash = new TrashBox((action, run) => this.press(action, run));
    this.comparison = new Comparison();
    this.heads = ["Compare", "Run", "State", "Step", "Best eval", describeMetric(S_PER_STEP).label,
      describeMetric(MEMORY_PEAK).label, "Model", "Created", "Actions"];
    const last = this.heads.length - 1;
    element.replaceChildren(this.undo, this.queue, h("div", { class: "toolbar" }, this.filter, this.words),
      h("div", { class: "scroll" }, h("table", { class: "runs-table" },
        h("thead", {}, h("tr", {}, this.heads.map((name, i) => h("th", {},
          h("span", { class: i && i < last ? "" : "sr-only" }, name))))), this.body)),
      this.comparison.element, this.trash.element);
  }

  async refresh() {
    const turn = this.asked += 1;
    const answer = await getJson("studio/runs");
    // Requests can overlap; ignore an answer that is older than one already shown.
    if (turn < this.answered) return;
    this.answered = turn;
    this.runs = answer.runs;
    const names = this.runs.map((run) => run.name);
    for (const name of this.chosen) if (!names.includes(name)) this.chosen.delete(name);
    this.waiting = answer.queue.names;
    if (this.queueShown.by(answer.queue)) this.drawQueue(answer.queue);
    this.draw();
    this.comparison.show([...this.chosen]);
    await this.trash.refresh(answer.discarded);
    this.offerUndo();
  }

  /** Send an action to the server, and refresh soon after to show its effect.
   * @param {string} action @param {string} run */
  press(action, run) {
    this.trigger("click", { action, run, count: "" });
    refreshSoon(() => this.refresh(), 300, 1200);
  }

  draw() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = this.runs.filter((run) => words.every((word) => searched(run).includes(word)));
    const rows = shown.map((run) => this.row(run)), { children } = this.body;
    if (rows.length !== children.length || rows.some((row, i) => row !== children[i])) {
      this.body.replaceChildren(...rows);
    }
    if (!rows.length) this.body.replaceChildren(h("tr", {}, h("td", { colspan: this.heads.length },
      this.runs.length ? "No matching runs."
        : "No runs yet. Train the demo voice on the Start tab, or your own on the Train tab.")));
    const count = this.chosen.size;
    setText(this.words, count >= MOST_COMPARED ? "You can compare at most six runs." :
      count === 1 ? "Select one more run to compare." : "Select two to six runs to compare.");
  }

  /** The row of a run; the same element as long as its content is unchanged. @param {RunRow} run */
  row(run) {
    const place = this.waiting.indexOf(run.name), facts = JSON.stringify([run, place]);
    const known = this.rows.get(run.name);
    // Keep a row whose button is asking for confirmation, so that the second click hits it.
    if (known && (known.facts === facts || known.element.querySelector(".sure"))) return known.element;
    const element = this.makeRow(run, place, Boolean(known?.element.querySelector("details[open]")));
    this.rows.set(run.name, { facts, element });
    return element;
  }

  /** @param {RunRow} run @param {number} place in the queue @param {boolean} isOpen whether "More" was open */
  makeRow(run, place, isOpen) {
    const two = (/** @type {Child} */ first, /** @type {string} */ second) =>
      [h("div", {}, first), h("div", { class: "quiet" }, second)];
    const memory = number(run.peak_memory_gib, 3);
    /** @type {[Child | Child[], boolean?][]} Cells, and whether a phone shows the column's name beside it. */
    const cells = [[this.compareBox(run)], [two(h("b", {}, run.name), run.dataset || "")],
      [place < 0 ? chip(run.state, run.symbol) : chip("queued", place + 1 + ".")],
      [`${run.step} / ${run.total_steps}`, true], [number(run.best_eval), true],
      [number(run.median_s_per_step, 3), true], [memory === "-" ? memory : memory + " GiB", true],
      [two(run.family || "-", [run.optimizer, ...(run.optimizations || [])].join(", "))],
      [run.created_at ? clock(run.created_at) : "-"], [this.buttons(run, place >= 0, isOpen)]];
    return h("tr", { "data-run": run.name }, cells.map(([cell, isNamed], i) =>
      h("td", { "data-label": isNamed ? this.heads[i] : null }, cell)));
  }

  /** @param {RunRow} run */
  compareBox({ name }) {
    const box = h("input", { type: "checkbox", "aria-label": "Compare " + name, checked: this.chosen.has(name),
      onchange: () => {
        if (box.checked && this.chosen.size < MOST_COMPARED) this.chosen.add(name);
        else this.chosen.delete(name);
        box.checked = this.chosen.has(name);
        this.draw();
        this.comparison.show([...this.chosen]);
      } });
    return box;
  }

  /** @param {RunRow} run @param {boolean} isQueued @param {boolean} isOpen */
  buttons(run, isQueued, isOpen) {
    const can = (/** @type {string} */ action) => run.actions.includes(action);
    const give = (/** @type {string} */ bf16) => () => this.trigger("download", { run: run.name, bf16 });
    const files = FILES.map((path) => path.split(".")[1]).map((kind, i) => h("a",
      { href: runUrl(run.name, FILES[i]), download: run.name + "." + kind }, kind.toUpperCase()));
    return [h("span", { class: "links" }, mainButtons(this.trigger, run, !isQueued)),
      h("details", { class: "more-links", open: isOpen }, h("summary", {}, "More"),
        h("div", { class: "links" },
          smallButton("Copy settings to Train", () => this.trigger("apply", { run: run.name })),
          can("queue") && !isQueued ? smallButton("Add to queue", () => this.press("queue", run.name)) : null,
          run.step ? smallButton("Export voice", give("false")) : null,
          run.step && run.bf16 ? smallButton("Export voice in bf16", give("true")) : null,
          can("discard") ? confirmButton("Delete", "Move to trash?", () => {
            this.discarding = run.name;
            this.press("discard", run.name);
          }) : null),
        h("div", { class: "links" }, h("span", { class: "quiet" }, "Download"), files))];
  }

  /** Offer to undo the last deletion. */
  offerUndo() {
    const [last] = this.trash.entries;
    if (!last) this.undo.hidden = true;
    if (!last || last.name !== this.discarding) return;
    this.discarding = "";
    this.undo.hidden = false;
    this.undo.replaceChildren(`${last.name} was moved to the trash. `, smallButton("Undo", () => {
      this.undo.hidden = true;
      this.press("give_back", last.key);
    }));
  }

  /** @param {{ names: string[], paused: boolean }} queue */
  drawQueue({ names, paused }) {
    this.queue.hidden = !names.length && !paused;
    const items = names.map((name, i) => h("li", { "data-run": name }, h("b", {}, name),
      h("span", { class: "space" }),
      smallButton("Move up", () => this.press("earlier", name), { disabled: i === 0, "aria-label": `Move ${name} up` }),
      smallButton("Move down", () => this.press("later", name),
        { disabled: i === names.length - 1, "aria-label": `Move ${name} down` }),
      smallButton("Remove", () => this.press("unqueue", name), { "aria-label": `Remove ${name} from the queue` })));
    this.queue.replaceChildren(h("div", { class: "toolbar" }, h("h3", {}, "Queue"),
      h("span", { class: "quiet" }, paused ? "Paused: no new runs start."
        : "The next run starts when no run is training."),
      paused ? smallButton("Resume", () => this.press("continue", ""))
        : smallButton("Pause", () => this.press("pause", ""))), h("ol", {}, items));
  }
}

/** @param {RunRow} run */
function searched(run) {
  return [run.name, run.state, run.dataset, run.family, run.optimizer,
    ...(run.optimizations || [])].join(" ").toLowerCase();
}

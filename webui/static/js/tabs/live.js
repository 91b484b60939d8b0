/* The live panel: state, tiles, charts, previews and log of one run. */
import { button, chip, confirmButton, fact, h, offerChoices, progressBar, setProgress } from "../base/dom.js";
import { clock } from "../base/format.js";
import { openTab } from "../base/navigation.js";
import { page } from "../base/page.js";
import { on, show, wake, wantRows } from "../base/poll.js";
import { getJson, previewOf, runUrl } from "../base/server.js";
import { setText } from "../base/translations.js";
import { Breakdown } from "../charts/breakdown.js";
import { History, isRepeated } from "../charts/history.js";
import { LiveCharts } from "../charts/live_charts.js";
import { Tiles, elapsedText } from "./tiles.js";

const BUTTONS = [["preview", "Preview now", ""], ["save", "Save now", ""], ["resume", "Resume", "primary"],
  ["stop", "Stop and save", "stop"]];
const FACTS = ["family", "parameters", "device", "optimizer", "schedule", "train_clips", "val_clips"];
const READING_MS = 5000;  // How long a problem stays visible before another run is shown.
const NOTICES = 30;  // The newest ones; the history has all.
const LOOKS = 40;  // How often a restarted run is looked for, once a second.
const MORE_HELP = "Planned steps keep their learning rates; added steps use the last rate of the " +
  "schedule (or 5 % of its peak if that is zero).";

/** @param {HTMLElement} element @param {Trigger} trigger */
export function mountLive(element, trigger) {
  const isShown = () => element.isConnected && element.offsetParent !== null;
  const panel = new Panel(element, trigger, isShown);
  wantRows(isShown);
  on("rows", (problem) => panel.show(problem));
  on("active", () => panel.offerRuns());
  new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) panel.arrive();
  }).observe(element);
  panel.show("");
  panel.arrive();
}

class Panel {
  /** @type {string[]} */
  names = [];
  shownMarks = 0;
  lostAt = 0;
  /** @type {string | null} */
  shownRun = null;
  /** @type {string | null} */
  trashedRun = null;

  /** @param {HTMLElement} element @param {Trigger} trigger @param {() => boolean} isShown */
  constructor(element, trigger, isShown) {
    this.trigger = trigger;
    this.head = this.makeHead();
    this.bar = progressBar();
    this.words = h("div", { class: "progress-words", id: "live-words" });
    this.more = this.makeMore();
    this.problem = h("div", { class: "notice error", role: "alert", id: "live-problem" });
    this.alert = h("div", { role: "alert", id: "live-alert" });
    this.tiles = new Tiles();
    this.states = h("div", { class: "states", id: "live-optimizations" });
    this.breakdown = new Breakdown();
    this.charts = new LiveCharts(isShown);
    this.previews = h("div", { class: "previews", id: "live-previews" });
    this.previewTitle = h("h3", {}, "Previews");
    this.notices = h("div", { class: "notices", id: "live-notices" });
    this.history = new History();
    this.log = h("pre", { tabindex: "0" });
    this.logBox = h("details", { ontoggle: () => this.readLog() },
      h("summary", {}, "Log (last 200 lines)"), this.log);
    this.emptyWords = h("p", {}, "Nothing has been trained yet.");
    this.empty = h("div", { class: "empty", id: "live-empty" }, this.emptyWords,
      button("Open Start to train a demo voice", () => openTab("start"), { class: "primary" }));
    this.main = h("div", { class: "live" }, this.head.element, this.bar, this.words, this.more.element,
      this.problem, this.alert, h("div", {}, this.tiles.element, this.states, this.breakdown.element,
        this.charts.element, h("section", {}, this.previewTitle, this.previews), this.notices,
        this.history.element, this.logBox));
    element.replaceChildren(this.empty, this.main);
  }

  /** The run, its state and its buttons; each button is shown while the server offers its action. */
  makeHead() {
    const picker = h("select", { "aria-label": "Run", id: "live-run", onchange: () => { show(picker.value); } });
    const state = h("span"), since = h("span", { class: "quiet" });
    const buttons = BUTTONS.map(([action, label, kind]) => button(label, () => this.press(action),
      { class: kind, "data-action": action, id: "live-" + action }));
    const kill = confirmButton("Force stop", "Stop without saving?", () => this.press("kill"),
      { class: "stop", id: "live-kill", "data-action": "kill",
        title: "Kills the training process; Resume continues from the last checkpoint" });
    const discard = confirmButton("Discard", "Stop and move to trash?", () => {
      this.trashedRun = page.run;
      this.press("discard");
    }, { class: "", id: "live-discard", "data-action": "discard",
      title: "Moves the run to the trash, where you can restore it" });
    const listen = button("Listen", () => openTab("listen"),
      { class: "primary", id: "live-listen", "data-action": "listen" });
    const all = [...buttons, kill, discard, listen];
    return { picker, state, since, buttons: all, element: h("div", { class: "live-head" }, picker, state, since,
      h("span", { class: "space" }), all) };
  }

  /** Adds steps to the plan, during training or after the end. */
  makeMore() {
    const words = h("span", { class: "quiet" });
    const say = () => { setText(words, moreWords(page.series?.status, Number(count.value))); };
    const count = h("input", { type: "number", min: "1", step: "1", value: "100", id: "live-more-count",
      "aria-label": "Number of steps to add", oninput: say });
    const element = h("details", { class: "more", id: "live-more-box", ontoggle: say },
      h("summary", {}, "Run more steps"), h("div", { class: "toolbar" }, count,
        button("Add steps", () => this.press("more", count.value), { id: "live-more" }), words));
    return { element, count, say };
  }

  /** If no run is chosen, show an active one, else the newest, unless a problem is being shown. */
  async arrive() {
    await this.listRuns();
    const isRead = Date.now() - this.lostAt >= READING_MS;
    if (!page.run && isRead && this.names.length) show(page.active[0]?.name || this.names[0]);
    wake();
  }

  /** @param {string} action @param {string} [count] */
  press(action, count = "") {
    this.trigger("click", { action, run: page.run, count });
    setTimeout(wake, 300);
  }

  async listRuns() {
    const answer = await getJson("studio/runs?most=200").catch(() => null);
    if (answer) this.names = answer.runs.map((/** @type {RunRow} */ run) => run.name);
    this.offerRuns();
  }

  offerRuns() {
    const names = [...this.names];
    for (const name of [...page.active.map((run) => run.name), page.run]) {
      if (name && !names.includes(name)) names.unshift(name);
    }
    offerChoices(this.head.picker, names);
    if (page.run) this.head.picker.value = page.run;
    this.charts.overlay.offer(names, page.run);
  }

  /** Show what is known of the displayed run. @param {string} problem why there is none any more */
  show(problem) {
    const { series, run } = page;
    this.empty.hidden = Boolean(run);
    this.main.hidden = !run;
    if (problem) {
      this.lostAt = Date.now();
      setText(this.emptyWords, problem);
    }
    if (!run && this.trashedRun) setText(this.emptyWords,
      `${this.trashedRun} was moved to the trash. You can restore it on the Runs tab.`);
    this.offerRuns();
    if (!series?.status) {
      if (series) this.words.textContent = "Loading the run ...";
      return;
    }
    if (this.shownRun !== series.run || this.shownMarks > series.marks.length) this.startRun(series, series.status);
    this.showState(series, series.status);
    this.tiles.show(series);
    this.showMarks(series);
    this.breakdown.show(series);
    this.charts.draw();
    this.charts.overlay.readOn();
    if (this.logBox.open) this.readLog();
  }

  /** @param {Series} series @param {RunStatus} status */
  startRun(series, status) {
    this.shownRun = series.run;
    this.shownMarks = 0;
    this.trashedRun = null;
    for (const box of [this.previews, this.notices, this.alert, this.states]) box.replaceChildren();
    this.history.clear();
    this.charts.startRun(series.run);
    this.more.count.value = String(Math.max(1, Math.round(status.total_steps / 10)) || 100);
  }

  /** @param {Series} series @param {RunStatus} status */
  showState(series, status) {
    this.head.state.replaceChildren(chip(status.state, status.symbol));
    setText(this.head.since, "created " + clock(status.created_at));
    for (const item of this.head.buttons) item.hidden = !status.actions.includes(item.dataset.action || "");
    this.more.element.hidden = !status.actions.includes("more");
    if (this.more.element.open) this.more.say();
    setProgress(this.bar, status.percent);
    this.bar.classList.toggle("waiting", status.active && Boolean(status.phase));
    setText(this.words, [status.phase, `${Math.floor(status.percent)} %`,
      `step ${status.step} of ${status.total_steps}`, status.eta, elapsedText(series, status),
    ].filter(Boolean).join("   -   "));
    this.problem.hidden = !status.reason;
    this.problem.className = "notice " + (status.state === "failed" ? "error" : "warning");
    setText(this.problem, status.reason ? `${status.reason} ${status.remedy}`.trim() : "");
  }

  /** @param {Series} series */
  showMarks(series) {
    for (const mark of series.marks.slice(this.shownMarks)) {
      if (mark.kind === "preview") this.addPreview(series.run, mark);
      if (mark.kind === "notice" && !isRepeated(mark, series)) this.addNotice(mark);
      if (mark.kind === "plan") this.addNotice({ ...mark, values: { level: "info",
        text: `The run now ends at step ${mark.values.last_step}.` } });
      if (mark.kind === "started") this.showOptimizations(mark.values);
      this.history.add(mark);
    }
    this.shownMarks = series.marks.length;
    this.previewTitle.hidden = !this.previews.children.length;
  }

  /** @param {MarkValues} started */
  showOptimizations({ facts = {}, optimizations = {} }) {
    const known = FACTS.filter((name) => facts[name] != null).map((name) => fact(name,
      typeof facts[name] === "number" ? facts[name].toLocaleString("en") : facts[name]));
    const chips = Object.entries(optimizations).map(([name, { on: isOn, asked, detail }]) => h("span",
      { class: "fact " + (isOn ? "on" : asked ? "missing" : "off") },
      h("b", {}, name.replaceAll("_", " ") + (isOn ? " on" : " off")), h("small", {}, " " + detail)));
    const isOff = (/** @type {HTMLElement} */ item) => item.classList.contains("off"), off = chips.filter(isOff);
    this.states.replaceChildren(h("div", {}, known, chips.filter((item) => !isOff(item))),
      off.length ? h("details", {}, h("summary", {}, `${off.length} optimizations are off`),
        h("div", { class: "chips" }, off)) : "");
  }

  /** @param {string} run @param {Mark} mark */
  addPreview(run, mark) {
    const { path, text } = mark.values, shown = previewOf(run, path.split("/").pop() || path, text);
    this.previews.prepend(h("div", { class: "preview" }, h("b", {}, "step " + mark.step), shown,
      h("span", { dir: "auto" }, text)));
    if (shown instanceof HTMLAudioElement) this.charts.addPlay(mark, () => shown.play());
  }

  /** @param {Mark} mark */
  addNotice({ step, values: { level, text, remedy = "", offer } }) {
    const element = h("div", { class: "notice " + level }, `step ${step}: ${text} ${remedy}`.trim());
    if (offer === "rescue") {
      element.append(button("Restart with AdamW from the last good checkpoint", () => this.restart(),
        { class: "small rescue" }));
      this.alert.replaceChildren(element);
    } else this.notices.prepend(element);
    while (this.notices.children.length > NOTICES) this.notices.lastChild?.remove();
  }

  /** Restart this run under a new name, and show the new run once it exists. */
  restart() {
    const before = page.run;
    this.press("rescue");
    const look = async (/** @type {number} */ tries) => {
      await this.listRuns();
      const next = this.names.find((name) => name.startsWith(before + "-adamw"));
      if (next && page.run === before) show(next);
      else if (!next && tries) setTimeout(() => look(tries - 1), 1000);
    };
    look(LOOKS);
  }

  async readLog() {
    if (!this.logBox.open || !page.run) return;
    const answer = await fetch(runUrl(page.run, "log"), { cache: "no-store" }).catch(() => null);
    if (answer?.ok) setText(this.log, (await answer.text()) || "(empty)");
  }
}

/** What adding steps does. @param {RunStatus | null | undefined} status @param {number} count */
function moreWords(status, count) {
  if (!status || !(count >= 1)) return "Enter an integer of at least 1.";
  const end = (status.state === "finished" ? status.step : status.total_steps) + count;
  return `The run will end at step ${end}. ${MORE_HELP}`;
}

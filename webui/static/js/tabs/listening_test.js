/* The listening test: a sentence spoken by several checkpoints, and a blind test that ranks them. */
import { Changed, button, h } from "../base/dom.js";
import { getJson, runUrl } from "../base/server.js";
import { setText } from "../base/translations.js";
import { spectrogram } from "../charts/spectrogram.js";
import { PairQueue, pairsOf, question, rankingOf } from "./ballot.js";
import { onListen } from "./previews.js";

// The limits match webui/jobs/listening_test.py, and the timeout that of webui/jobs/synthesis.py.
const MOST = 5, MOST_TEXTS = 6, LOOK_MS = 1500, TIMEOUT_MS = 300000;
/** @type {ListeningTest | null} */
let test = null;

/** @param {HTMLElement} element @param {Trigger} trigger */
export function mountListeningTest(element, trigger) {
  const shown = test = new ListeningTest(trigger);
  element.replaceChildren(shown.element);
  onListen((run) => { if (test === shown) shown.choose(run); });
}

/** Called when a vote has been stored: reload the ranking if it is visible. */
export function countVote() {
  if (test?.ballot.hidden) test.read();
}

class ListeningTest {
  /** @type {string | null} */
  run = null;
  /** @type {TakesAnswer} */
  known = { takes: [], choices: { steps: [], best: null, has_base: false, sentences: [] }, votes: 0, standings: [] };
  /** @type {Set<string>} */
  chosen = new Set();
  /** The sentences that were generated last. @type {{ texts: string[], speaker: string } | null} */
  shown = null;
  drawn = new Changed();
  queue = new PairQueue();
  answers = 0;

  /** @param {Trigger} trigger */
  constructor(trigger) {
    this.trigger = trigger;
    this.entries = h("div", { class: "toolbar", id: "court-entries" });
    this.sentences = h("select", { multiple: true, size: "5", id: "court-sentences", "aria-label": "Sentences" });
    this.own = h("input", { type: "text", dir: "auto", id: "court-own", placeholder: "Or enter your own sentence",
      "aria-label": "Your own sentence" });
    this.speakButton = button("Generate takes", () => this.speak(), { class: "primary", id: "court-speak" });
    this.blindButton = button("Blind test", () => this.startBlind(), { id: "court-blind" });
    this.words = h("span", { class: "quiet", role: "status", id: "court-words" });
    this.list = h("div", { class: "court-list" });
    this.ballot = h("div", { class: "ballot", id: "ballot", hidden: true });
    this.ranking = h("div", { id: "ranking" });
    this.element = h("section", { class: "court live", hidden: true }, h("h3", {}, "Compare checkpoints"),
      this.entries, h("div", { class: "court-texts" }, this.sentences, this.own),
      h("div", { class: "toolbar" }, this.speakButton, this.blindButton, this.words),
      this.ballot, this.ranking, this.list);
  }

  /** @param {string | null} run */
  async choose(run) {
    if (run === this.run) return;
    this.run = run;
    this.ballot.hidden = true;
    this.chosen.clear();
    this.shown = null;
    if (await this.read()) this.offer();
  }

  async read() {
    const { run } = this;
    const answer = run ? await getJson(runUrl(run, "takes")).catch(() => null) : null;
    if (!answer || run !== this.run) return false;
    this.known = answer;
    this.draw();
    return true;
  }

  /** Offer the base, the checkpoints and the recording; preselect the first, best and last. */
  offer() {
    const { steps, best, has_base: hasBase, sentences } = this.known.choices;
    const base = hasBase ? ["base"] : [], recording = sentences.length ? ["recording"] : [];
    const favourites = [steps[0], best, steps[steps.length - 1]].filter((step) => step != null).map(String);
    const ticked = this.chosen = new Set([...base, ...favourites, ...recording]);
    this.entries.replaceChildren(...[...base, ...steps.map(String), ...recording].map((value) => {
      const box = h("input", { type: "checkbox", value, checked: ticked.has(value), onchange: () => { this.tick(box); } });
      return h("label", {}, box, " ", this.name(value));
    }));
    this.sentences.replaceChildren(...sentences.map(({ text }, i) => h("option",
      { value: text, selected: i < 2, dir: "auto" }, text)));
    this.sentences.hidden = !sentences.length;
    this.element.hidden = !steps.length;
    this.draw();
  }

  /** @param {HTMLInputElement} box */
  tick(box) {
    const voices = [...this.chosen].filter((entry) => entry !== "recording");
    if (box.checked && box.value !== "recording" && voices.length >= MOST) box.checked = false;
    if (box.checked) this.chosen.add(box.value);
    else this.chosen.delete(box.value);
    setText(this.words, voices.length >= MOST ? "Choose at most five voices." : "");
    this.draw();
  }

  /** @param {string} entry */
  name(entry) {
    if (entry === "base") return "base model";
    if (entry === "recording") return "recording";
    return Number(entry) === this.known.choices.best ? `step ${entry} (best)` : `step ${entry}`;
  }

  texts() {
    const picked = [...this.sentences.selectedOptions].map((option) => option.value);
    const own = this.own.value.trim();
    return [...(own ? [own] : []), ...picked].slice(0, MOST_TEXTS);
  }

  /** Request the takes, then poll until all exist, an error toast appears or time runs out. */
  async speak() {
    const texts = this.texts(), entries = [...this.chosen], { run } = this, began = Date.now();
    if (!texts.length || !entries.length) return setText(this.words, "Choose a sentence and at least one voice.");
    const spoken = this.known.choices.sentences.find((sentence) => sentence.text === texts[texts.length - 1]);
    const speaker = spoken ? spoken.speaker : "", voices = entries.filter((entry) => entry !== "recording");
    const isDone = () => voices.every((entry) => texts.every((text) => this.known.takes.some((take) =>
      take.entry === entry && take.text === text && take.speaker === speaker)));
    this.shown = { texts, speaker };
    this.trigger("apply", { run, texts: texts.join("\n"), entries: entries.join(","), speaker });
    this.speakButton.disabled = true;
    setText(this.words, "Generating takes ...");
    while (this.run === run && Date.now() - began < TIMEOUT_MS) {
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
      await this.read();
      if (isDone() || document.querySelector(".toast-body.error")) break;
    }
    this.speakButton.disabled = false;
    setText(this.words, isDone() ? "" : "Some takes could not be generated.");
    this.draw();
  }

  draw() {
    const { takes, votes, standings } = this.known;
    if (!this.drawn.by(takes, [...this.chosen], this.shown, standings)) return;
    const wanted = this.shown ? this.shown.texts : [...new Set(takes.map((take) => take.text))].slice(-2);
    this.list.replaceChildren(...wanted.map((text) => this.row(text)).filter((row) => row != null));
    this.blindButton.disabled = !this.pairs().length;
    this.ranking.replaceChildren(...(votes ? rankingOf(standings, votes, (entry) => this.name(entry)) : []));
  }

  /** @param {string} text */
  row(text) {
    const order = ["base", ...this.known.choices.steps.map(String), "recording"];
    const found = this.known.takes.filter((take) => take.text === text && this.chosen.has(take.entry))
      .sort((one, two) => order.indexOf(one.entry) - order.indexOf(two.entry));
    if (!found.length) return null;
    return h("div", { class: "court-row" }, h("p", { dir: "auto" }, text),
      h("div", { class: "court-cards" }, found.map((take) => this.card(take))));
  }

  /** @param {Take} take */
  card(take) {
    const url = this.url(take), name = this.name(take.entry);
    const audio = h("audio", { controls: true, preload: "none", src: url, "aria-label": name });
    return h("div", { class: "card court-card", "data-entry": take.entry }, h("b", {}, name),
      spectrogram(url, audio, name), audio, h("a", { href: url, download: `${this.run}-${take.entry}.wav` }, "Download"));
  }

  /** @param {Take} take */
  url(take) {
    return runUrl(this.run || "", `takes/${take.id}.wav`);
  }

  pairs() {
    return pairsOf(this.known.takes.filter((take) => this.chosen.has(take.entry)));
  }

  startBlind() {
    this.queue = new PairQueue();
    this.answers = 0;
    this.showBallot(true);
    this.ask();
  }

  endBlind() {
    this.showBallot(false);
    this.read();
  }

  /** @param {boolean} isShown */
  showBallot(isShown) {
    this.list.hidden = this.ranking.hidden = isShown;
    this.ballot.hidden = !isShown;
  }

  ask() {
    const pairs = this.pairs();
    if (!pairs.length) return this.endBlind();
    const pair = this.queue.next(pairs), [first, second] = pair;
    this.ballot.replaceChildren(...question(pair, `${this.answers} answers now; there are ${pairs.length} pairs.`,
      (take) => this.url(take), (winner) => {
        this.trigger("click", { run: this.run, first: first.id, second: second.id, winner });
        this.answers += 1;
        this.ask();
      }, () => this.endBlind()));
  }
}

/* Blind votes: which pair is asked next, the question, and the ranking that the votes give. */
import { button, h } from "../base/dom.js";

/** All pairs of takes of one sentence by two different voices. @param {Take[]} takes @returns {[Take, Take][]} */
export function pairsOf(takes) {
  return takes.flatMap((one, i) => takes.slice(i + 1)
    .filter((two) => one.text === two.text && one.entry !== two.entry)
    .map((two) => /** @type {[Take, Take]} */ ([one, two])));
}

/** Asks about pairs in random order, each as often as the others. */
export class PairQueue {
  /** @type {Map<string, number>} */
  asked = new Map();

  /** @param {() => number} [random] from 0 to below 1 */
  constructor(random = Math.random) {
    this.random = random;
  }

  /** One of the pairs asked least often, its voices in random order. @param {[Take, Take][]} pairs */
  next(pairs) {
    const key = (/** @type {[Take, Take]} */ [one, two]) => [one.id, two.id].sort().join();
    const times = (/** @type {[Take, Take]} */ pair) => this.asked.get(key(pair)) || 0;
    const least = Math.min(...pairs.map(times));
    const open = pairs.filter((pair) => times(pair) === least);
    const pair = open[Math.floor(this.random() * open.length)];
    this.asked.set(key(pair), least + 1);
    return this.random() < 0.5 ? pair : [pair[1], pair[0]];
  }
}

/**
 * The question about two takes.
 * @param {Take[]} pair @param {string} words how far the votes are @param {(take: Take) => string} url
 * @param {(winner: string) => void} vote @param {() => void} end
 */
export function question([first, second], words, url, vote, end) {
  const player = (/** @type {string} */ letter, /** @type {Take} */ take) => h("div", { class: "card court-card" },
    h("b", {}, letter), h("audio", { controls: true, src: url(take), "aria-label": "Voice " + letter }));
  return [h("h3", {}, "Which one is better?"), h("p", { dir: "auto" }, first.text),
    h("div", { class: "court-cards" }, player("A", first), player("B", second)),
    h("div", { class: "toolbar" }, button("A is better", () => vote("first"), { id: "vote-a" }),
      button("B is better", () => vote("second"), { id: "vote-b" }),
      button("No difference", () => vote("same"), { id: "vote-same" }),
      button("Show ranking", end, { id: "end-blind" }), h("span", { class: "quiet" }, words))];
}

/** The sentence above the ranking. @param {Standing[]} standings @param {(entry: string) => string} nameOf */
export function verdict([top, next], nameOf) {
  if (!next) return "";
  return top.low > next.high ? `${nameOf(top.name)} is preferred.`
    : "No clear winner yet: the intervals overlap. More votes make them narrower.";
}

/** @param {Standing[]} standings @param {number} votes @param {(entry: string) => string} nameOf */
export function rankingOf(standings, votes, nameOf) {
  const percent = (/** @type {number} */ share) => (100 * share).toFixed(0);
  return [h("h3", {}, "Ranking by blind votes"), h("p", {}, verdict(standings, nameOf)),
    h("div", { class: "ranking" }, standings.map(({ name, low, high, score, wins, losses, draws }) =>
      h("div", { class: "ranking-row", "data-entry": name }, h("b", {}, nameOf(name)),
        h("span", { class: "ranking-bar" },
          h("i", { style: `inset-inline-start:${100 * low}%;inline-size:${100 * (high - low)}%` }),
          h("u", { style: `inset-inline-start:${100 * score}%` })),
        h("span", { class: "quiet" }, `${percent(score)} % (${percent(low)} to ${percent(high)}), ` +
          `${wins} won, ${losses} lost, ${draws} drawn`)))),
    h("p", { class: "quiet" }, `${votes} votes. The estimated chance of being preferred to an average ` +
      "voice, with a 90 % bootstrap interval.")];
}

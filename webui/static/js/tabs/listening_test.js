/* The listening test: a sentence spoken by several checkpoints, and a blind test that ranks them. */
(function () {
  "use strict";
  const t = window.timbre;
  // The limits match webui/jobs/listening_test.py, and the timeout that of webui/jobs/synthesis.py.
  const MOST = 5, MOST_TEXTS = 6, LOOK_MS = 1500, PATIENCE_MS = 300000;
  let court = null;

  t.mountListeningTest = function (element, trigger) {
    court = new Court(trigger);
    element.replaceChildren(court.element);
    if (t.listened) court.choose(t.listened);
  };

  /* Called when a vote has been stored: reload the ranking if it is visible. */
  t.countVote = function () {
    if (court && court.ballot.hidden) court.read();
  };

  const listenTo = t.listenTo;
  t.listenTo = function (run) {
    t.listened = run;
    if (court) court.choose(run);
    return listenTo(run);
  };

  class Court {
    constructor(trigger) {
      this.trigger = trigger;
      this.run = null;
      this.takes = [];
      this.chosen = new Set();
      this.build();
    }

    build() {
      this.entries = t.h("div", { class: "toolbar", id: "court-entries" });
      this.sentences = t.h("select", { multiple: true, size: "5", id: "court-sentences",
        "aria-label": "Sentences" });
      this.own = t.h("input", { type: "text", dir: "auto", id: "court-own", placeholder: "Or enter your own sentence",
        "aria-label": "Your own sentence" });
      this.speakButton = t.h("button", { type: "button", class: "primary", id: "court-speak",
        onclick: () => this.speak() }, "Generate takes");
      this.blindButton = t.h("button", { type: "button", id: "court-blind",
        onclick: () => this.startBlind() }, "Blind test");
      this.words = t.h("span", { class: "quiet", role: "status", id: "court-words" });
      this.list = t.h("div", { class: "court-list" });
      this.ballot = t.h("div", { class: "ballot", id: "ballot" });
      this.ranking = t.h("div", { id: "ranking" });
      this.ballot.hidden = true;
      this.element = t.h("section", { class: "court live", hidden: true }, t.h("h3", {}, "Compare checkpoints"),
        this.entries, t.h("div", { class: "court-texts" }, this.sentences, this.own),
        t.h("div", { class: "toolbar" }, this.speakButton, this.blindButton, this.words),
        this.ballot, this.ranking, this.list);
    }

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
      const answer = run ? await t.getJson(t.runUrl(run, "takes")).catch(() => null) : null;
      if (!answer || run !== this.run) return false;
      Object.assign(this, { takes: answer.takes, choices: answer.choices, votes: answer.votes,
        standings: answer.standings });
      this.draw();
      return true;
    }

    /* Offer the base, the checkpoints and the recording; preselect the first, best and last. */
    offer() {
      const { steps, best, has_base: hasBase, sentences } = this.choices;
      const ticked = new Set([steps[0], best, steps[steps.length - 1]].filter((step) => step != null).map(String));
      if (hasBase) ticked.add("base");
      if (sentences.length) ticked.add("recording");
      const entries = [...(hasBase ? ["base"] : []), ...steps.map(String), ...(sentences.length ? ["recording"] : [])];
      this.chosen = ticked;
      this.entries.replaceChildren(...entries.map((entry) => t.h("label", {}, t.h("input", { type: "checkbox",
        value: entry, checked: ticked.has(entry), onchange: (event) => this.tick(event.target) }),
      " ", this.name(entry))));
      this.sentences.replaceChildren(...sentences.map((sentence, i) => t.h("option",
        { value: sentence.text, selected: i < 2, dir: "auto" }, sentence.text)));
      this.sentences.hidden = !sentences.length;
      this.element.hidden = !steps.length;
      this.draw();
    }

    tick(box) {
      const voices = [...this.chosen].filter((entry) => entry !== "recording");
      if (box.checked && box.value !== "recording" && voices.length >= MOST) box.checked = false;
      if (box.checked) this.chosen.add(box.value);
      else this.chosen.delete(box.value);
      t.setText(this.words, voices.length >= MOST ? "Choose at most five voices." : "");
      this.draw();
    }

    name(entry) {
      if (entry === "base") return "base model";
      if (entry === "recording") return "recording";
      return Number(entry) === (this.choices || {}).best ? `step ${entry} (best)` : `step ${entry}`;
    }

    texts() {
      const picked = [...this.sentences.selectedOptions].map((option) => option.value);
      const own = this.own.value.trim();
      return [...(own ? [own] : []), ...picked].slice(0, MOST_TEXTS);
    }

    /* Request the takes, then poll until all exist, an error toast appears or time runs out. */
    async speak() {
      const texts = this.texts(), entries = [...this.chosen];
      if (!texts.length || !entries.length) return t.setText(this.words, "Choose a sentence and at least one voice.");
      const spoken = this.choices.sentences.find((sentence) => sentence.text === texts[texts.length - 1]);
      const speaker = spoken ? spoken.speaker : "";
      const { run } = this, began = Date.now();
      const voices = entries.filter((entry) => entry !== "recording");
      const isDone = () => voices.every((entry) => texts.every((text) =>
        this.takes.some((take) => take.entry === entry && take.text === text && take.speaker === speaker)));
      this.shown = { texts, speaker };
      this.trigger("apply", { run, texts: texts.join("\n"), entries: entries.join(","), speaker });
      this.speakButton.disabled = true;
      t.setText(this.words, "Generating takes ...");
      while (this.run === run && Date.now() - began < PATIENCE_MS) {
        await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
        await this.read();
        if (isDone() || document.querySelector(".toast-body.error")) break;
      }
      this.speakButton.disabled = false;
      t.setText(this.words, isDone() ? "" : "Some takes could not be generated.");
      this.draw();
    }

    draw() {
      const facts = JSON.stringify([this.takes, [...this.chosen], this.shown, this.standings]);
      if (facts === this.facts) return;
      this.facts = facts;
      const wanted = this.shown ? this.shown.texts : [...new Set(this.takes.map((take) => take.text))].slice(-2);
      this.list.replaceChildren(...wanted.map((text) => this.row(text)).filter(Boolean));
      this.blindButton.disabled = !this.pairs().length;
      this.drawRanking();
    }

    row(text) {
      const order = ["base", ...this.choices.steps.map(String), "recording"];
      const found = this.takes.filter((take) => take.text === text && this.chosen.has(take.entry))
        .sort((one, two) => order.indexOf(one.entry) - order.indexOf(two.entry));
      if (!found.length) return null;
      return t.h("div", { class: "court-row" }, t.h("p", { dir: "auto" }, text),
        t.h("div", { class: "court-cards" }, found.map((take) => this.card(take))));
    }

    card(take) {
      const url = this.url(take), name = this.name(take.entry);
      const audio = t.h("audio", { controls: true, preload: "none", src: url, "aria-label": name });
      return t.h("div", { class: "card court-card", "data-entry": take.entry }, t.h("b", {}, name),
        t.spectrogram(url, audio, name), audio, t.h("a", { href: url,
          download: `${this.run}-${take.entry}.wav` }, "Download"));
    }

    url(take) {
      return t.runUrl(this.run, `takes/${take.id}.wav`);
    }

    /* All pairs of takes of one sentence by two different selected voices. */
    pairs() {
      const found = [];
      const takes = this.takes.filter((take) => this.chosen.has(take.entry));
      takes.forEach((one, i) => takes.slice(i + 1).forEach((two) => {
        if (one.text === two.text && one.entry !== two.entry) found.push([one, two]);
      }));
      return found;
    }

    startBlind() {
      this.asked = new Map();
      this.count = 0;
      this.list.hidden = this.ranking.hidden = true;
      this.ballot.hidden = false;
      this.nextPair();
    }

    endBlind() {
      this.list.hidden = this.ranking.hidden = false;
      this.ballot.hidden = true;
      this.read();
    }

    /* Ask about one of the pairs asked least often, in random order. */
    nextPair() {
      const key = ([one, two]) => [one.id, two.id].sort().join();
      const pairs = this.pairs();
      if (!pairs.length) return this.endBlind();
      const least = Math.min(...pairs.map((pair) => this.asked.get(key(pair)) || 0));
      const open = pairs.filter((pair) => (this.asked.get(key(pair)) || 0) === least);
      const pair = open[Math.floor(Math.random() * open.length)];
      this.asked.set(key(pair), least + 1);
      const [first, second] = Math.random() < 0.5 ? pair : [pair[1], pair[0]];
      this.drawBallot(first, second, pairs.length);
    }

    drawBallot(first, second, total) {
      const player = (letter, take) => t.h("div", { class: "card court-card" }, t.h("b", {}, letter),
        t.h("audio", { controls: true, src: this.url(take), "aria-label": "Voice " + letter }));
      const answer = (winner) => () => this.vote(first, second, winner);
      const button = (label, winner, id) => t.h("button", { type: "button", id, onclick: answer(winner) }, label);
      this.ballot.replaceChildren(t.h("h3", {}, "Which one is better?"), t.h("p", { dir: "auto" }, first.text),
        t.h("div", { class: "court-cards" }, player("A", first), player("B", second)),
        t.h("div", { class: "toolbar" }, button("A is better", "first", "vote-a"),
          button("B is better", "second", "vote-b"), button("No difference", "same", "vote-same"),
          t.h("button", { type: "button", id: "end-blind", onclick: () => this.endBlind() }, "Show ranking"),
          t.h("span", { class: "quiet" }, `${this.count} answers now; there are ${total} pairs.`)));
    }

    vote(first, second, winner) {
      this.trigger("click", { run: this.run, first: first.id, second: second.id, winner });
      this.count += 1;
      this.nextPair();
    }

    drawRanking() {
      if (!this.votes) return this.ranking.replaceChildren();
      const [top, next] = this.standings;
      const isClear = next && top.low > next.high;
      const words = !next ? "" : isClear ? `${this.name(top.name)} is preferred.`
        : "No clear winner yet: the intervals overlap. More votes make them narrower.";
      this.ranking.replaceChildren(t.h("h3", {}, "Ranking by blind votes"), t.h("p", {}, words),
        t.h("div", { class: "ranking" }, this.standings.map((place) => t.h("div", { class: "ranking-row",
          "data-entry": place.name }, t.h("b", {}, this.name(place.name)), t.h("span", { class: "ranking-bar" },
          t.h("i", { style: `inset-inline-start:${100 * place.low}%;inline-size:${100 * (place.high - place.low)}%` }),
          t.h("u", { style: `inset-inline-start:${100 * place.score}%` })),
        t.h("span", { class: "quiet" }, `${(100 * place.score).toFixed(0)} % ` +
          `(${(100 * place.low).toFixed(0)} to ${(100 * place.high).toFixed(0)}), ` +
          `${place.wins} won, ${place.losses} lost, ${place.draws} drawn`)))),
        t.h("p", { class: "quiet" }, `${this.votes} votes. The estimated chance of being preferred to an average ` +
          "voice, with a 90 % bootstrap interval."));
    }
  }
})();

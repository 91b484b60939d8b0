/* The panel of the Data tab that shows the progress of cutting recordings and offers the clips. */
(function () {
  "use strict";
  const t = window.timbre;
  const PHASES = {
    "": () => "Starting.",
    cut: (done, total) => `Cut ${done} of ${total} recordings.`,
    text: (done, total) => `Transcribed ${done} of ${total} clips.`,
  };

  t.mountCut = function (element, trigger) {
    const panel = new CutPanel(element, trigger);
    t.whileShown(element, () => panel.refresh());
    t.refreshSegmentation = () => setTimeout(() => panel.refresh().catch(() => {}), 300);
  };

  class CutPanel {
    constructor(element, trigger) {
      const button = (label, id, action, kind) =>
        t.h("button", { type: "button", class: "small " + (kind || ""), id, onclick: action }, label);
      this.words = t.h("span", { role: "status", id: "cut-words" });
      this.stop = button("Stop", "cut-stop", () => trigger("click", { action: "stop" }));
      this.use = button("Use these clips", "cut-use", () => trigger("apply", {}), "primary");
      this.bar = t.h("div", { class: "progress", role: "progressbar", "aria-label": "Progress" }, t.h("i", {}));
      this.faults = t.h("ul", { class: "quiet" });
      this.main = t.h("div", { class: "live trial" },
        t.h("div", { class: "toolbar" }, this.words, this.use, this.stop), this.bar, this.faults);
      this.main.hidden = true;
      element.replaceChildren(this.main);
    }

    async refresh() {
      const told = await t.getJson("studio/cut");
      const isRunning = told.state === "running";
      this.main.hidden = told.state === "none";
      this.stop.hidden = this.bar.hidden = !isRunning;
      this.use.hidden = !told.found;
      this.bar.firstChild.style.width = (told.total ? 100 * told.done / told.total : 0) + "%";
      t.setText(this.words, isRunning ? PHASES[told.phase](told.done, told.total) : told.found ? describe(told.found)
        : told.problem || "Cutting was stopped. Cut again to continue.");
      const faults = told.found ? told.found.faults : [];
      if (faults.length !== this.faults.children.length) {
        this.faults.replaceChildren(...faults.map((fault) => t.h("li", {}, fault)));
      }
    }
  }

  function describe(found) {
    const minutes = (seconds) => (seconds / 60).toFixed(1);
    const kept = minutes(found.clips_s), all = minutes(found.recordings_s);
    return found.without_text
      ? `${found.clips} clips, ${kept} of ${all} minutes; ${found.without_text} have no text yet.`
      : `${found.clips} clips, ${kept} of ${all} minutes.`;
  }
})();

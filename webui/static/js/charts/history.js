/* The history of a run in sentences: starts, checkpoints, previews, notices and ends. */
(function () {
  "use strict";
  const t = window.timbre;
  const MOST = 200;
  const ENDS = { finished: "Training finished.", stopped: "Stopped and saved.", failed: "Training failed." };

  t.History = class {
    constructor() {
      this.list = t.h("ol", { class: "history", reversed: true });
      this.element = t.h("details", { id: "live-history" }, t.h("summary", {}, "History"), this.list);
    }

    clear() {
      this.list.replaceChildren();
    }

    add(mark) {
      const words = t.describeMark(mark);
      if (!words) return;
      this.list.prepend(t.h("li", {}, t.h("time", { class: "quiet" }, t.clock(mark.time)),
        t.h("b", {}, "step " + mark.step), t.h("span", {}, words)));
      while (this.list.children.length > MOST) this.list.lastChild.remove();
    }
  };

  /* Describe a mark of the time axis in one sentence. */
  t.describeMark = function (mark) {
    const { values } = mark;
    if (mark.kind === "started") return mark.step > 0 ? `Resumed from step ${mark.step}.` : "Training started.";
    if (mark.kind === "checkpoint") {
      const size = t.number(values.size_bytes / 2 ** 20, 3);
      return `${values.best ? "Best checkpoint so far" : "Checkpoint"} saved, ${size} MiB.`;
    }
    if (mark.kind === "preview") return "A preview was generated.";
    if (mark.kind === "plan") return `The run now ends at step ${values.last_step}.`;
    if (mark.kind === "notice") return values.text;
    if (mark.kind === "finished") return `${ENDS[values.outcome] || values.outcome} ${values.reason || ""}`.trim();
    return "";
  };
})();

/* What happened in a run, in words: starts, saves, previews, changes of the plan, notices, ends. */
(function () {
  "use strict";
  const t = window.timbre;
  const MOST = 200;
  const ENDS = { finished: "Training finished.", stopped: "Stopped and kept.", failed: "Training failed." };

  t.History = class {
    constructor() {
      this.list = t.h("ol", { class: "history", reversed: true });
      this.element = t.h("details", { id: "live-history" }, t.h("summary", {}, "What happened"), this.list);
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

  /* One sentence on a mark of the time axis. */
  t.describeMark = function (mark) {
    const { values } = mark;
    if (mark.kind === "started") return mark.step > 0 ? `Resumed from step ${mark.step}.` : "Training began.";
    if (mark.kind === "checkpoint") {
      const size = t.number(values.size_bytes / 2 ** 20, 3);
      return `${values.best ? "Best checkpoint so far" : "Checkpoint"} saved, ${size} MiB.`;
    }
    if (mark.kind === "preview") return "A preview was spoken.";
    if (mark.kind === "plan") return `The end of the run was moved to step ${values.last_step}.`;
    if (mark.kind === "notice") return values.text;
    if (mark.kind === "finished") return `${ENDS[values.outcome] || values.outcome} ${values.reason || ""}`.trim();
    return "";
  };
})();

/* The trash below the run table, and buttons that ask for confirmation. */
(function () {
  "use strict";
  const t = window.timbre;
  /* How long a button asks for confirmation before it resets. */
  t.confirmMs = 5000;

  /* A button that shows a question on the first click and acts on the second. */
  t.confirmButton = function (label, question, action, attributes) {
    let timer = null;
    const button = t.h("button", { type: "button", class: "small", ...attributes, onclick: () => {
      if (timer) {
        rest();
        action();
        return;
      }
      button.classList.add("sure");
      t.setText(button, question);
      timer = setTimeout(rest, t.confirmMs);
    } }, label);
    function rest() {
      clearTimeout(timer);
      timer = null;
      button.classList.remove("sure");
      t.setText(button, label);
    }
    return button;
  };

  /* The list of deleted runs; fetched only when their number changes. */
  t.TrashBox = class {
    constructor(press) {
      this.press = press;
      this.entries = [];
      this.count = 0;
      this.summary = t.h("summary", {});
      this.list = t.h("div", {});
      this.element = t.h("details", { class: "trash", id: "trash" }, this.summary, this.list);
      this.element.hidden = true;
    }

    async refresh(count) {
      if (count === this.count) return;
      const answer = count ? await t.getJson("studio/trash") : { discarded: [] };
      this.entries = answer.discarded;
      this.count = count;
      this.element.hidden = !count;
      t.setText(this.summary, `Trash (${count})`);
      this.list.replaceChildren(...this.entries.map((entry) => t.h("div", { class: "recent-run" },
        t.h("b", {}, entry.name),
        t.h("span", { class: "quiet" }, `${megabytes(entry.size_bytes)}, deleted ${t.clock(entry.discarded_at)}`),
        t.h("span", { class: "space" }),
        t.h("button", { type: "button", class: "small",
          onclick: () => this.press("give_back", entry.key) }, "Restore"),
        t.confirmButton("Delete permanently", "Delete permanently?", () => this.press("delete", entry.key)))));
    }
  };

  function megabytes(bytes) {
    return bytes < 2 ** 30 ? `${t.number(bytes / 2 ** 20, 3)} MiB` : `${t.number(bytes / 2 ** 30, 3)} GiB`;
  }
})();

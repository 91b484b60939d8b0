/* The trash below the run table, and buttons that ask once more before they do harm. */
(function () {
  "use strict";
  const t = window.timbre;
  /* How long a button asks. */
  t.sureMs = 5000;

  /* A button that acts on the second press; it says so after the first, for a few seconds. */
  t.sureButton = function (label, question, deed, attributes) {
    let timer = null;
    const button = t.h("button", { type: "button", class: "small", ...attributes, onclick: () => {
      if (timer) {
        rest();
        deed();
        return;
      }
      button.classList.add("sure");
      t.setText(button, question);
      timer = setTimeout(rest, t.sureMs);
    } }, label);
    function rest() {
      clearTimeout(timer);
      timer = null;
      button.classList.remove("sure");
      t.setText(button, label);
    }
    return button;
  };

  /* What was thrown away; read anew only when its number changes. */
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
          onclick: () => this.press("give_back", entry.key) }, "Take back"),
        t.sureButton("Delete for good", "Delete for good?", () => this.press("delete", entry.key)))));
    }
  };

  function megabytes(bytes) {
    return bytes < 2 ** 30 ? `${t.number(bytes / 2 ** 20, 3)} MiB` : `${t.number(bytes / 2 ** 30, 3)} GiB`;
  }
})();

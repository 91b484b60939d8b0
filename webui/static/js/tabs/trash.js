/* The trash below the run table; fetched only when the number of deleted runs changes. */
import { confirmButton, h, smallButton } from "../base/dom.js";
import { clock, fileSize } from "../base/format.js";
import { getJson } from "../base/server.js";
import { setText } from "../base/translations.js";

export class TrashBox {
  /** @type {TrashEntry[]} */
  entries = [];
  count = 0;

  /** @param {(action: string, key: string) => void} press */
  constructor(press) {
    this.press = press;
    this.summary = h("summary");
    this.list = h("div");
    this.element = h("details", { class: "trash", id: "trash", hidden: true }, this.summary, this.list);
  }

  /** @param {number} count */
  async refresh(count) {
    if (count === this.count) return;
    this.entries = count ? (await getJson("studio/trash")).discarded : [];
    this.count = count;
    this.element.hidden = !count;
    setText(this.summary, `Trash (${count})`);
    this.list.replaceChildren(...this.entries.map((entry) => h("div", { class: "recent-run" },
      h("b", {}, entry.name),
      h("span", { class: "quiet" }, `${fileSize(entry.size_bytes)}, deleted ${clock(entry.discarded_at)}`),
      h("span", { class: "space" }), smallButton("Restore", () => this.press("give_back", entry.key)),
      confirmButton("Delete permanently", "Delete permanently?", () => this.press("delete", entry.key)))));
  }
}

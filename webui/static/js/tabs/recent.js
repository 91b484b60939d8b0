/* The recent runs on the Start tab, and the buttons that a run has everywhere. */
import { chip, h, smallButton, whileShown } from "../base/dom.js";
import { openTab } from "../base/navigation.js";
import { settings } from "../base/page.js";
import { show } from "../base/poll.js";
import { getJson } from "../base/server.js";

/** @param {HTMLElement} element @param {Trigger} trigger */
export function mountRecent(element, trigger) {
  const list = h("div", { class: "recent" });
  element.replaceChildren(list);
  whileShown(element, 4 * settings.pollMs, async () => {
    /** @type {RunRow[]} */
    const runs = (await getJson("studio/runs?most=3")).runs;
    list.replaceChildren(...runs.map((run) => h("div", { class: "recent-run" },
      chip(run.state, run.symbol), h("b", {}, run.name),
      h("span", { class: "quiet" }, `step ${run.step} of ${run.total_steps}`),
      h("span", { class: "space" }), mainButtons(trigger, run, true))));
    if (!runs.length) list.replaceChildren(h("p", { class: "quiet" }, "No runs yet."));
  });
}

/** Watch, and where the run offers it, Listen and Resume. @param {Trigger} trigger @param {RunRow} run
 * @param {boolean} mayResume */
export function mainButtons(trigger, run, mayResume) {
  const open = (/** @type {string} */ tab) => {
    show(run.name);
    openTab(tab);
  };
  return [smallButton("Watch", () => open("live")),
    run.actions.includes("listen") ? smallButton("Listen", () => open("listen")) : null,
    mayResume && run.actions.includes("resume") ? smallButton("Resume", () => {
      trigger("click", { action: "resume", run: run.name });
      open("live");
    }) : null];
}

/* The status bar above the tabs: active runs with their progress, and connection problems. */
import { chip, h, smallButton } from "../base/dom.js";
import { duration, number } from "../base/format.js";
import { openTab } from "../base/navigation.js";
import { page } from "../base/page.js";
import { on, show } from "../base/poll.js";
import { setText } from "../base/translations.js";

/** @param {HTMLElement} element */
export function mountStatusBar(element) {
  const notice = h("div", { class: "notice warning", role: "status", "aria-live": "polite", hidden: true });
  const list = h("div", { class: "strip-runs" });
  /** @type {ReturnType<typeof line>[]} */
  const lines = [];
  element.replaceChildren(notice, list);
  on("link", (isBack) => {
    notice.hidden = isBack;
    document.body.classList.toggle("server-away", !isBack);
    const age = duration((Date.now() - (page.answeredAt || Date.now())) / 1000);
    setText(notice, isBack ? "" :
      `Connection lost; training continues. Reconnecting ... (data is ${age} old)`);
  });
  on("login", () => {
    notice.hidden = false;
    document.body.classList.add("server-away");
    notice.replaceChildren(h("span", {}, "You are logged out; training continues. "),
      smallButton("Log in again", () => location.reload(), { id: "log-in" }));
  });
  on("active", (active) => {
    // The lines stay, so that a click is not lost when a line is drawn again.
    while (lines.length < active.length) lines.push(line());
    active.forEach((run, i) => lines[i].fill(run));
    if (list.children.length !== active.length) {
      list.replaceChildren(...lines.slice(0, active.length).map((item) => item.element));
    }
    const [first] = active;
    document.title = first?.total_steps ? `${Math.floor(first.percent)} % - ${first.name}` : "Timbre";
  });
}

function line() {
  const state = h("span"), words = h("span", { class: "strip-words" }), done = h("i");
  let name = "";
  const watch = smallButton("Watch", () => {
    show(name);
    openTab("live");
  });
  /** @param {RunStatus} run */
  const fill = (run) => {
    name = run.name;
    state.replaceChildren(chip(run.state, run.symbol));
    const parts = [run.name, run.phase || `step ${run.step} of ${run.total_steps}`];
    if (run.loss != null) parts.push(`loss ${number(run.loss)}`);
    if (run.s_per_step != null) parts.push(`${number(run.s_per_step, 3)} s/step`);
    if (run.eta) parts.push(run.eta);
    setText(words, parts.join("  -  "));
    done.style.width = `${run.percent}%`;
  };
  return { fill, element: h("div", { class: "strip-run" }, state, words,
    h("span", { class: "strip-bar" }, done), watch) };
}

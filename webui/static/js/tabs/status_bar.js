/* The status bar above the tabs: active runs with their progress, and connection problems. */
(function () {
  "use strict";
  const t = window.timbre;

  t.mountStatusBar = function (element) {
    const notice = t.h("div", { class: "notice warning", role: "status", "aria-live": "polite" });
    const list = t.h("div", { class: "strip-runs" });
    element.replaceChildren(notice, list);
    notice.hidden = true;

    t.on("link", (isBack) => {
      notice.hidden = isBack;
      document.body.classList.toggle("server-away", !isBack);
      const age = t.duration((Date.now() - (t.answeredAt || Date.now())) / 1000);
      t.setText(notice, isBack ? "" :
        `Connection lost; training continues. Reconnecting ... (data is ${age} old)`);
    });

    t.on("login", () => {
      notice.hidden = false;
      document.body.classList.add("server-away");
      notice.replaceChildren(t.h("span", {}, "You are logged out; training continues. "),
        t.h("button", { type: "button", class: "small", id: "log-in", onclick: () => location.reload() },
          "Log in again"));
    });

    t.on("active", () => {
      while (list.children.length > t.active.length) list.lastChild.remove();
      t.active.forEach((run, i) => {
        if (!list.children[i]) list.append(line());
        fill(list.children[i], run);
      });
      const first = t.active[0];
      document.title = first && first.total_steps
        ? `${Math.floor(first.percent)} % - ${first.name}` : "Timbre";
    });
  };

  function line() {
    const words = t.h("span", { class: "strip-words" });
    const watch = t.h("button", { type: "button", class: "small" }, "Watch");
    const bar = t.h("span", { class: "strip-bar" }, t.h("i", {}));
    return t.h("div", { class: "strip-run" }, t.h("span", {}), words, bar, watch);
  }

  function fill(element, run) {
    const [state, words, bar, watch] = element.children;
    state.replaceChildren(t.chip(run.state, run.symbol));
    const parts = [run.name];
    if (run.phase) parts.push(run.phase);
    else parts.push(`step ${run.step} of ${run.total_steps}`);
    if (run.loss != null) parts.push(`loss ${t.number(run.loss)}`);
    if (run.s_per_step != null) parts.push(`${t.number(run.s_per_step, 3)} s/step`);
    if (run.eta) parts.push(run.eta);
    t.setText(words, parts.join("  -  "));
    bar.firstChild.style.width = `${run.percent}%`;
    watch.onclick = () => {
      t.show(run.name);
      t.openTab("live");
    };
  }
})();

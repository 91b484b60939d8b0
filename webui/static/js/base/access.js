/* Accessibility: keyboard shortcuts (listed under `?`), tab headings and labels that Gradio's own
   components lack. */
(function () {
  "use strict";
  const t = window.timbre;
  const KEYS = [
    ["Ctrl + Enter", "Start training (Train tab) or speak (Listen tab)"],
    ["S", "Live: generate a preview now"],
    ["L", "Live: toggle the log scale"],
    ["+ -", "Live: change the smoothing"],
    ["\u2190 \u2192", "Live: move along the focused chart"],
    ["Esc", "Live: reset the zoom"],
    ["?", "Show this list"],
  ];
  const REPAIR_MS = 250;
  let help = null, waiting = null;

  t.showKeys = function () {
    help = help || makeHelp();
    help.showModal();
  };

  function makeHelp() {
    const rows = KEYS.map(([key, action]) => t.h("tr", {}, t.h("td", {}, t.h("kbd", {}, key)),
      t.h("td", {}, action)));
    const close = t.h("button", { type: "button", onclick: () => help.close() }, "Close");
    const dialog = t.h("dialog", { class: "keys", id: "keys", "aria-labelledby": "keys-title" },
      t.h("h2", { id: "keys-title" }, "Keyboard shortcuts"), t.h("table", {}, t.h("tbody", {}, rows)), close);
    document.body.append(dialog);
    return dialog;
  }

  function openTab() {
    const tab = document.querySelector("#tabs [role=tab][aria-selected=true]");
    return tab ? tab.dataset.tabId : "";
  }

  function press(selector) {
    const button = document.querySelector(selector);
    if (!button || button.disabled || button.offsetParent === null) return false;
    button.click();
    return true;
  }

  function smooth(change) {
    const slider = document.querySelector("#live-smoothing");
    if (!slider) return false;
    slider.value = Number(slider.value) + change;
    slider.dispatchEvent(new Event("input"));
    return true;
  }

  const LIVE = {
    s: () => press("#live-preview"), l: () => press("#live .toolbar input[type=checkbox]"),
    "+": () => smooth(0.05), "=": () => smooth(0.05), "-": () => smooth(-0.05),
    escape: () => press("#live-show-all"),
  };

  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.metaKey || event.defaultPrevented) return;
    if (event.ctrlKey) {
      const start = { train: "#start-training", listen: "#speak-now" }[openTab()];
      if (event.key === "Enter" && start && press(start)) event.preventDefault();
      return;
    }
    // A letter typed into a field is not a shortcut.
    const isTyping = event.target.closest && event.target.closest("textarea, select, dialog, " +
      "input:not([type=checkbox]):not([type=radio]):not([type=range])");
    if (isTyping) return;
    if (event.key === "?") t.showKeys();
    else if (openTab() !== "live" || !(LIVE[event.key.toLowerCase()] || (() => false))()) return;
    event.preventDefault();
  });

  document.addEventListener("click", (event) => {
    if (event.target.id === "show-keys") t.showKeys();
  });

  /* Gradio builds a tab when it is first opened: add its heading and the missing roles then. */
  function repair() {
    waiting = null;
    for (const panel of document.querySelectorAll("#tabs > [role=tabpanel]")) {
      const tab = document.getElementById(panel.id + "-button");
      if (!tab || panel.firstElementChild && panel.firstElementChild.matches(".tab-title")) continue;
      panel.prepend(t.h("h2", { class: "tab-title sr-only" }, t.originalText(tab)));
    }
    for (const empty of document.querySelectorAll("div.empty[aria-label]:not([role])")) {
      empty.setAttribute("role", "group");
    }
  }

  new MutationObserver(() => { waiting = waiting || setTimeout(repair, REPAIR_MS); })
    .observe(document.documentElement, { subtree: true, childList: true });
})();

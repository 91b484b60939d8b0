/* DOM helpers without innerHTML, formatting of numbers and times, JSON requests, tabs and theme. */
(function () {
  "use strict";
  const t = window.timbre;
  const linkedTab = new URLSearchParams(location.search).get("tab");
  let wantedTab = "";

  /* Make an element. Strings become text nodes, so untrusted text is never parsed as HTML. */
  t.h = function (tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value != null) element.setAttribute(name, value);
    }
    element.append(...children.flat().filter((child) => child != null));
    return element;
  };

  /* Set the text only if it changed, to avoid needless layout. */
  t.setText = function (element, text) {
    if (t.originalText(element) !== text) element.textContent = text;
  };

  t.number = function (value, digits) {
    if (value == null || !isFinite(value)) return "-";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
      return t.digits(Number(value.toPrecision(digits || 3)).toExponential().replace("e+", "e"));
    }
    return t.digits(String(Number(value.toPrecision(digits || 4))));
  };

  t.duration = function (seconds) {
    if (seconds == null || !isFinite(seconds)) return "-";
    const s = Math.max(0, Math.round(seconds));
    if (s < 90) return s + " s";
    const minutes = Math.round(s / 60);
    if (minutes < 60) return minutes + " min";
    return Math.floor(minutes / 60) + " h " + String(minutes % 60).padStart(2, "0") + " min";
  };

  t.clock = function (seconds) {
    return new Date(seconds * 1000).toLocaleString(t.language, {
      month: "short", day: "numeric", hour: "2-digit", minute: "2-digit",
    });
  };

  t.chip = function (state, symbol) {
    return t.h("span", { class: "chip chip-" + state }, symbol ? symbol + " " : null, state);
  };

  /* The element for a preview of a run: an image for SVG files, else an audio player. */
  t.previewOf = function (run, file, words) {
    const src = t.runUrl(run, "previews/" + encodeURIComponent(file));
    return file.endsWith(".svg") ? t.h("img", { src, alt: words || "", loading: "lazy" })
      : t.h("audio", { controls: true, preload: "none", src });
  };

  t.runUrl = function (run, rest) {
    return "studio/runs/" + encodeURIComponent(run) + "/" + rest;
  };

  t.getJson = async function (url, timeoutMs) {
    if (t.isLoggedOut) throw Object.assign(new Error("401"), { status: 401 });
    const control = new AbortController();
    const timer = setTimeout(() => control.abort(), timeoutMs || 15000);
    try {
      const answer = await fetch(url, { cache: "no-store", signal: control.signal });
      const values = await answer.json();
      if (!answer.ok) throw Object.assign(new Error(values.error), { status: answer.status });
      return values;
    } finally {
      clearTimeout(timer);
    }
  };

  /* Click a tab; on narrow windows Gradio moves its button into a menu, where it has no id. */
  t.openTab = function (name) {
    wantedTab = name;
    pressTab(name, 60);
  };

  function pressTab(name, tries) {
    const hidden = [...document.querySelectorAll("#tabs .overflow-dropdown button")]
      .find((button) => t.originalText(button).trim().toLowerCase() === name);
    const button = document.getElementById("tab-" + name + "-button") || hidden;
    if (button) button.click();
    // The click is lost if the button is just moving between the row and the menu, so check.
    requestAnimationFrame(() => {
      const panel = document.getElementById("tab-" + name);
      // Stop if another tab was wanted meanwhile; two retry loops would fight forever.
      if (tries && wantedTab === name && panel && !panel.offsetParent) pressTab(name, tries - 1);
    });
  }

  /* Open the tab named in the address, unless the user has clicked something since. */
  t.openLinkedTab = function () {
    if (linkedTab && !wantedTab) t.openTab(linkedTab);
  };

  /* Put the open tab into the address, so that a reload returns to it. */
  document.addEventListener("click", (event) => {
    const tab = event.target.closest && event.target.closest("#tabs [data-tab-id]");
    if (event.isTrusted) wantedTab = tab ? tab.dataset.tabId : wantedTab || "-";
    if (!tab) return;
    const address = new URL(location.href);
    address.searchParams.set("tab", tab.dataset.tabId);
    history.replaceState(null, "", address);
  });

  t.switchTheme = function () {
    document.body.classList.toggle("dark");
    document.dispatchEvent(new Event("timbre-theme"));
    try {
      localStorage.setItem("timbre-dark", document.body.classList.contains("dark") ? "1" : "0");
    } catch (error) { /* private windows may refuse storage; the choice is then not remembered */ }
  };

  try {
    const dark = localStorage.getItem("timbre-dark");
    if (dark != null && !location.search.includes("__theme")) {
      document.body.classList.toggle("dark", dark === "1");
    }
  } catch (error) { /* as above */ }
})();

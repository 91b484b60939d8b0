/* Form validation: shows problems next to their fields, and announces them to screen readers.

   Edited fields are checked on the server after a pause in typing; the marks in its answer replace
   all earlier ones. Gradio builds a field when its tab or accordion is first opened, so marks wait. */
(function () {
  "use strict";
  const t = window.timbre;
  const PAUSE_MS = 400, REPAIR_MS = 100, TRIES = 150;
  const CHECKED = ["data", "training", "family", "optimizer", "schedule", "optimization"]
    .map((part) => `[id^="${part}-"]`).join(", ") + ", #dataset";
  const CONTROLS = "input, textarea, select";
  const said = t.h("div", { class: "sr-only", role: "status", id: "fields-said" });
  let marks = new Map(), ask = () => {}, pause = null, repair = null;

  t.mountFieldErrors = function (element, trigger) {
    ask = () => trigger("input");
    document.body.append(said);
  };

  /* Ask the server to check the whole form now. */
  t.checkForm = function () {
    clearTimeout(pause);
    ask();
  };

  /* Show the marks of an answer: JSON with `marks`, and `pressed` if a button was refused. */
  t.showFieldErrors = function (text) {
    const told = text ? JSON.parse(text) : { marks: [] };
    const news = told.marks.filter((mark) => (marks.get(mark.field) || {}).words !== mark.words);
    marks = new Map(told.marks.map((mark) => [mark.field, mark]));
    render();
    t.setText(said, news.map((mark) => mark.words).join(" "));
    if (told.pressed && told.marks.length) reveal(nearest(told.marks), TRIES);
  };

  /* The first marked field on the open tab, else the first of all. */
  function nearest(found) {
    const open = document.querySelector("#tabs [role=tab][aria-selected=true]");
    return found.find((mark) => open && mark.tab === open.dataset.tabId) || found[0];
  }

  /* Open the tab and the accordions around a field, one after another as Gradio builds them. */
  function reveal(mark, tries) {
    const open = document.querySelector("#tabs [role=tab][aria-selected=true]");
    if (mark.tab && (!open || open.dataset.tabId !== mark.tab)) t.openTab(mark.tab);
    for (const fold of mark.folds) {
      const head = document.querySelector(`#${CSS.escape(fold)} > button.label-wrap`);
      if (head && !head.classList.contains("open")) head.click();
    }
    const control = controlOf(mark.field);
    if (control && control.offsetParent !== null) {
      render();
      control.focus({ preventScroll: true });
      document.getElementById(mark.field).scrollIntoView({ block: "center" });
    } else if (tries) setTimeout(() => reveal(mark, tries - 1), REPAIR_MS);
  }

  function controlOf(field) {
    const element = document.getElementById(field);
    return element && element.querySelector(CONTROLS);
  }

  function render() {
    repair = null;
    for (const words of document.querySelectorAll(".field-problem")) {
      if (!marks.has(words.dataset.field)) unmark(words.dataset.field);
    }
    for (const mark of marks.values()) show(mark);
  }

  function show(mark) {
    const control = controlOf(mark.field), id = mark.field + "-problem";
    if (!control) return;
    const words = document.getElementById(id) ||
      t.h("p", { class: "field-problem", id, "data-field": mark.field });
    t.setText(words, mark.words);
    if (!words.isConnected) document.getElementById(mark.field).append(words);
    if (control.getAttribute("aria-describedby") !== id) control.setAttribute("aria-describedby", id);
    if (!control.hasAttribute("aria-invalid")) control.setAttribute("aria-invalid", "true");
  }

  function unmark(field) {
    const words = document.getElementById(field + "-problem"), control = controlOf(field);
    if (words) words.remove();
    if (!control) return;
    control.removeAttribute("aria-invalid");
    control.removeAttribute("aria-describedby");
  }

  document.addEventListener("input", (event) => {
    const field = event.target.closest && event.target.closest("[id^=race-], " + CHECKED);
    if (!field) return;
    // A dropdown has its own event for a choice; text typed into it only filters the choices.
    if (event.target.matches("[role=combobox]")) return;
    if (marks.delete(field.id)) unmark(field.id);
    if (field.id.startsWith("race-")) return;
    clearTimeout(pause);
    pause = setTimeout(t.checkForm, PAUSE_MS);
  });

  new MutationObserver(() => {
    if (marks.size) repair = repair || setTimeout(render, REPAIR_MS);
  }).observe(document.documentElement, { subtree: true, childList: true });
})();

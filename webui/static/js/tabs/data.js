/* The Data tab: the buttons of the issue table, and a warning before unsaved edits are lost. */
(function () {
  "use strict";
  const t = window.timbre;
  /* Gradio components accept only known event names, so these three stand for our actions. */
  const EVENTS = { show: "click", "leave-out": "delete", limit: "apply" };
  const STARTS = "#start-training, #add-to-queue";
  const QUESTION = "The Data tab has unsaved edits: this run would train on the old texts. " +
    "Start anyway?";
  let draft = "";

  t.mountFindings = function (element, trigger) {
    element.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-action]");
      if (button) trigger(EVENTS[button.dataset.action], { kind: button.dataset.kind });
    });
  };

  /* Remember the unsaved edits; an empty text means there are none. */
  t.setDraft = function (text) {
    draft = text || "";
  };

  window.addEventListener("beforeunload", (event) => {
    if (draft) event.preventDefault();
  });

  document.addEventListener("click", (event) => {
    const isStart = draft && event.target.closest && event.target.closest(STARTS);
    if (!isStart || window.confirm(t.translate ? t.translate(QUESTION) : QUESTION)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
})();

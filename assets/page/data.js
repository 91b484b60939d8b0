/* The Data tab: buttons of what to look at, and a warning before unsaved changes are lost. */
(function () {
  "use strict";
  const t = window.timbre;
  /* Gradio's names of events, as it knows no others. */
  const EVENTS = { show: "click", "leave-out": "delete", limit: "apply" };
  const STARTS = "#start-training, #add-to-queue";
  const QUESTION = "Texts under Data were changed and are not saved: this run would train on the old " +
    "ones. Go on?";
  let draft = "";

  t.mountFindings = function (element, trigger) {
    element.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-action]");
      if (button) trigger(EVENTS[button.dataset.action], { kind: button.dataset.kind });
    });
  };

  /* Remember whether there are changes that no file holds yet. */
  t.setDraft = function (text) {
    draft = text || "";
  };

  window.addEventListener("beforeunload", (event) => {
    if (draft) event.preventDefault();
  });

  document.addEventListener("click", (event) => {
    const isStart = draft && event.target.closest && event.target.closest(STARTS);
    if (!isStart || window.confirm(t.say ? t.say(QUESTION) : QUESTION)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
})();

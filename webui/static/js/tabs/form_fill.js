/* Which fields were edited when, so that an answer never overwrites a later edit; presets, at once.

   Every edit and every request takes the next number. An answer fills a field only if the field was
   not edited after the request was made. A preset needs no server: what each one changes came with
   the page. */
(function () {
  "use strict";
  const t = window.timbre;
  const FORM = ["data", "training", "family", "optimizer", "schedule", "optimization"]
    .map((part) => `[id^="${part}-"]`).join(", ") + ", #dataset, #base, #run-name";
  // Gradio says "input" of a list also when it only loses the focus, so choices are told by their value.
  const shown = new Map();  // what each such list showed last
  const edited = new Map(), asked = new Map();
  let count = 0, changed = 0, answered = 0, empty = () => {}, isPlanShown = false;

  /* Note that somebody edits a field now. */
  function note(event) {
    const field = event.target.closest && event.target.closest(FORM);
    if (!field) return;
    edited.set(field.id, ++count);
    // The name changes nothing of what Start does.
    if (field.id !== "run-name") forgetPlan();
  }

  /* The plan on the Start button may be wrong from now on. */
  function forgetPlan() {
    changed = ++count;
    if (isPlanShown) empty();
    isPlanShown = false;
  }
  document.addEventListener("input", note, true);
  document.addEventListener("mousedown", (event) => {
    if (event.target.closest && event.target.closest("[role=option]")) note(event);
  }, true);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches && event.target.matches("[role=combobox]")) note(event);
  }, true);

  t.mountPlan = function (element, trigger) {
    empty = () => trigger("change");
  };

  /* Note a request; the inputs pass through. A field whose value is "@stamp" takes the number. */
  t.askFields = function (name, given) {
    asked.set(name, ++count);
    return given.map((value) => value === "@stamp" ? String(count) : value);
  };

  /* Whether a field was edited after a request was made. */
  t.isEditedSince = function (field, name) {
    return (edited.get(field) || 0) > (asked.get(name) || 0);
  };

  /* The values of an answer in the order of the fields; undefined leaves a field as it is. */
  t.takeFields = function (name, text) {
    const answer = JSON.parse(text), since = asked.get(name) || 0;
    const taken = answer.order.map((field) => {
      if (!(field in answer.values) || (edited.get(field) || 0) > since) return undefined;
      // An answer to an older request must not overwrite this one either.
      edited.set(field, since);
      shown.set(field, answer.values[field]);
      return answer.values[field];
    });
    forgetPlan();
    return taken;
  };

  /* Whether a list shows something else than before; it is remembered. */
  function isNew(field, value) {
    const known = shown.has(field) ? shown.get(field) : presets().shown[field];
    shown.set(field, value);
    return known !== value;
  }

  function presets() {
    return JSON.parse(document.getElementById("preset-values").textContent);
  }

  /* The base checkpoint that goes with a family: the bundled one is of one family only. */
  function baseFor(family, base, facts) {
    if (base && base !== facts.bundled) return undefined;
    return family === facts.bundledFamily ? facts.bundled : "";
  }

  /* The choice of the data after a check of a list: those just checked, unless another choice was
     made since the check began. */
  t.chooseDataset = function (path, demoPath, demo, own) {
    return [t.isEditedSince("dataset", "check") ? undefined : path === demoPath ? demo : own];
  };

  /* The base checkpoint after a family was chosen; undefined where none was or it may stay. */
  t.chooseFamily = function (family, base) {
    return [isNew("family-choice", family) ? baseFor(family, base, presets()) : undefined];
  };

  /* The values that a preset sets, in the order of the fields; undefined leaves a field as it is.

     `now` holds what the switches (lists of entries, checkboxes) and the base show. Options of an
     entry that was not chosen before start at their defaults. */
  t.choosePreset = function (preset, ...now) {
    const facts = presets(), plan = isNew("preset", preset) ? facts.plans[preset] : null;
    if (!plan) return facts.order.map(() => undefined);
    const before = Object.fromEntries(facts.switches.map((field, i) => [field, now[i]]));
    const values = {};
    for (const part of plan) {
      const applies = Object.entries(part.unless || {}).every(([field, value]) => before[field] !== value);
      if (applies) Object.assign(values, part.set);
    }
    const family = values["family-choice"];
    if (family !== undefined && family !== before["family-choice"]) {
      values.base = baseFor(family, before.base, facts);
      shown.set("family-choice", family);
    }
    const number = ++count;
    for (const field of Object.keys(values)) edited.set(field, number);
    forgetPlan();
    return facts.order.map((field) => values[field]);
  };

  /* Show an answer to the form as it was: its problems, and, unless somebody edited on, the preset
     that it shows and what Start will do. Returns the values of the list and of the button. */
  t.takePlan = function (text) {
    const told = text ? JSON.parse(text) : {}, number = Number(told.stamp);
    // A busy server may answer two requests in the other order.
    if (!(number > answered)) return [undefined, undefined];
    answered = number;
    t.showFieldErrors(text);
    if (number < changed) return [undefined, undefined];
    shown.set("preset", told.preset);
    isPlanShown = true;
    return [told.preset, told.start];
  };
})();

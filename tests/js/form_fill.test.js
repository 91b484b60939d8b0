import assert from "node:assert/strict";
import test from "node:test";
import { askFields, chooseDataset, chooseFamily, mountPlan, startNotingEdits, takeFields, valuesOfPreset }
  from "../../webui/static/js/tabs/form_fill.js";

const FACTS = {
  order: ["training-lr", "training-steps", "family-choice", "base", "optimizer-choice"],
  switches: ["family-choice", "optimizer-choice", "base"],
  shown: { preset: "standard", "family-choice": "small" }, bundled: "demo.safetensors", bundledFamily: "small",
  plans: {
    quick: [{ set: { "training-steps": 50, "optimizer-choice": "lion" } },
      { unless: { "optimizer-choice": "lion" }, set: { "training-lr": 1e-4 } }],
    large: [{ set: { "family-choice": "xtts" } }],
  },
};

/* Just enough of a document to type into a field. */
globalThis.Element = class {
  constructor(id) {
    this.id = id;
  }

  closest() {
    return this;
  }
};
const listeners = {};
globalThis.document = { addEventListener: (kind, listener) => { listeners[kind] = listener; } };
startNotingEdits();
const type = (id) => listeners.input({ target: new Element(id) });

function answer(values) {
  return JSON.stringify({ order: Object.keys(values), values });
}

test("an answer fills the fields that were not edited after the request", () => {
  askFields("estimate", []);
  type("training-batch-size");

  assert.deepEqual(takeFields("estimate", answer({ "training-batch-size": 8, "training-steps": 9 })), [undefined, 9]);
});

test("an edit before the request does not protect a field", () => {
  type("training-batch-size");
  askFields("estimate", []);

  assert.deepEqual(takeFields("estimate", answer({ "training-batch-size": 8 })), [8]);
});

test("an answer to an older request does not overwrite a newer one", () => {
  askFields("slow", []);
  askFields("fast", []);
  takeFields("fast", answer({ "training-clip": 2 }));

  assert.deepEqual(takeFields("slow", answer({ "training-clip": 1 })), [undefined]);
});

test("requests are stamped in order", () => {
  const [first, second] = [askFields("a", ["@stamp", "x"]), askFields("a", ["@stamp", "x"])];

  assert.ok(Number(second[0]) > Number(first[0]));
  assert.equal(first[1], "x");
});

test("a preset changes its own fields, and options of an entry only if the entry is new", () => {
  const now = ["small", "adamw", "demo.safetensors"];

  const chosen = valuesOfPreset(FACTS, "quick", now);
  const again = valuesOfPreset(FACTS, "quick", now);

  assert.deepEqual(chosen, [1e-4, 50, undefined, undefined, "lion"]);
  assert.deepEqual(again, Array(5).fill(undefined));
});

test("options of an entry that was chosen before stay as they are", () => {
  valuesOfPreset(FACTS, "standard", []);

  assert.deepEqual(valuesOfPreset(FACTS, "quick", ["small", "lion", ""]), [undefined, 50, undefined, undefined, "lion"]);
});

test("the bundled base goes when another family is chosen, and comes back with its own", () => {
  valuesOfPreset(FACTS, "standard", []);
  const [, , , base] = valuesOfPreset(FACTS, "large", ["small", "adamw", "demo.safetensors"]);

  assert.equal(base, "");
  assert.deepEqual(chooseFamily("small", "", FACTS), ["demo.safetensors"]);
  assert.deepEqual(chooseFamily("small", "", FACTS), [undefined]);
  assert.deepEqual(chooseFamily("xtts", "mine.pth", FACTS), [undefined]);
});

test("the checked list is chosen unless another was chosen meanwhile", () => {
  askFields("check", []);
  const untouched = [chooseDataset("/demo", "/demo", "Demo", "Own"), chooseDataset("/a.csv", "/demo", "Demo", "Own")];
  type("dataset");

  assert.deepEqual(untouched, [["Demo"], ["Own"]]);
  assert.deepEqual(chooseDataset("/a.csv", "/demo", "Demo", "Own"), [undefined]);
});

test("a field that is typed into empties the plan only if one is shown", () => {
  const events = [];
  mountPlan(null, (event) => events.push(event));

  type("training-steps");

  assert.deepEqual(events, []);
});

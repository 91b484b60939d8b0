import assert from "node:assert/strict";
import test from "node:test";
import { askFields, chooseDataset, choosePreset, mountPlan, mountPresets, startNotingEdits, takeFields }
  from "../../webui/static/js/tabs/form_fill.js";
import { fieldValue, resetFields, setField, startKeepingValues, withForm } from "../../webui/static/js/tabs/options.js";

const PRESETS = {
  preset: "standard", initial: { "family-choice": "small", base: "demo.safetensors", "optimizer-choice": "adamw" },
  bundled: "demo.safetensors", bundledFamily: "small",
  plans: {
    standard: [],
    quick: [{ set: { "training-steps": "50" } },
      { unless: { "optimizer-choice": "lion" }, reset: ["optimizer-lion-"] }, { set: { "optimizer-choice": "lion" } }],
    large: [{ set: { "family-choice": "xtts" } }],
  },
};

/* Just enough of a document to type into a field that is a text box. */
const listeners = [];
const addEventListener = (kind, listener) => listeners.push(listener);
globalThis.HTMLSelectElement = class {};
globalThis.Element = class {
  dataset = {};

  constructor(id, value) {
    this.id = id;
    this.controls = [{ value }];
  }

  closest() {
    return this;
  }

  querySelectorAll() {
    return this.controls;
  }
};
globalThis.window = { addEventListener };
globalThis.document = { addEventListener, getElementById: () => null };
startKeepingValues();
startNotingEdits();

function type(id, value = "") {
  for (const listener of listeners) listener({ target: new Element(id, value) });
}

function answer(values, order = Object.keys(values)) {
  return JSON.stringify({ order, values });
}

test.beforeEach(() => {
  mountPresets(null, null, { presets: PRESETS });
  choosePreset("standard");
  for (const start of ["family", "base", "optimizer", "training", "data"]) resetFields(start);
});

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

test("what is not Gradio's is kept in the form", () => {
  askFields("copy", []);

  assert.deepEqual(takeFields("copy", answer({ "training-lr": "0.1", dataset: "Demo" }, ["dataset"])), ["Demo"]);
  assert.equal(fieldValue("training-lr"), "0.1");
});

test("requests are stamped in order, and get what was edited or filled", () => {
  const [first, second] = [askFields("a", ["@stamp", "x"]), askFields("a", ["@stamp", "x"])];
  type("training-steps", "300");
  setField("optimizer-choice", "lion");

  assert.ok(Number(second[0]) > Number(first[0]));
  assert.equal(first[1], "x");
  assert.deepEqual(JSON.parse(withForm(["x", "@form"])[1]), { "training-steps": "300", "optimizer-choice": "lion" });
});

test("a preset changes its own fields, and options of an entry only if the entry is new", () => {
  setField("optimizer-lion-beta", "0.5");

  choosePreset("quick");

  assert.deepEqual(["training-steps", "optimizer-choice", "optimizer-lion-beta"].map(fieldValue),
    ["50", "lion", undefined]);
});

test("options of an entry that was chosen before stay as they are", () => {
  setField("optimizer-choice", "lion");
  setField("optimizer-lion-beta", "0.5");

  choosePreset("quick");

  assert.equal(fieldValue("optimizer-lion-beta"), "0.5");
});

test("a preset that is shown already changes nothing", () => {
  choosePreset("quick");
  type("training-steps", "7");

  choosePreset("quick");

  assert.equal(fieldValue("training-steps"), "7");
});

test("what a preset returns to its default is not filled by an earlier request", () => {
  askFields("slow", []);
  choosePreset("quick");

  takeFields("slow", answer({ "optimizer-lion-beta": "0.9" }, []));

  assert.equal(fieldValue("optimizer-lion-beta"), undefined);
});

test("the bundled base goes when another family is chosen, and comes back with its own", () => {
  choosePreset("large");
  const bases = [fieldValue("base")];
  type("family-choice", "small");
  bases.push(fieldValue("base"));
  setField("base", "mine.pth");
  type("family-choice", "xtts");

  assert.deepEqual([...bases, fieldValue("base")], ["", "demo.safetensors", "mine.pth"]);
});

test("the checked list is chosen unless another was chosen meanwhile", () => {
  askFields("check", []);
  const choices = ["/demo", "/a.csv"].map((path) => {
    setField("data-train_csv", path);
    return chooseDataset("/demo", "Demo", "Own");
  });
  type("dataset");

  assert.deepEqual(choices, [["Demo"], ["Own"]]);
  assert.deepEqual(chooseDataset("/demo", "Demo", "Own"), [undefined]);
});

test("a field that is typed into empties the plan only if one is shown", () => {
  const events = [];
  mountPlan(null, (event) => events.push(event));

  type("training-steps");

  assert.deepEqual(events, []);
});

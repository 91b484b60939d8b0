import assert from "node:assert/strict";
import test from "node:test";
import { useDictionary, translate, untranslated } from "../../webui/static/js/base/dictionary.js";
import { duration, fileSize, number, stepOf, stopwatch } from "../../webui/static/js/base/format.js";

test.afterEach(() => useDictionary("en", {}));

test("numbers have significant digits, and an exponent where they are small or large", () => {
  const shown = [0.123456, 12345.6, 0, 1e-4, 2.5e7, -0.00056, null, NaN].map((value) => number(value));

  assert.deepEqual(shown, ["0.1235", "12350", "0", "1e-4", "2.5e7", "-5.6e-4", "-", "-"]);
  assert.equal(number(3.14159, 2), "3.1");
});

test("durations have at most two units", () => {
  assert.deepEqual([0, 89.4, 90, 3599, 3600, 7320, -5, null].map(duration),
    ["0 s", "89 s", "2 min", "1 h 00 min", "1 h 00 min", "2 h 02 min", "0 s", "-"]);
});

test("times on an axis have hours only where they need them", () => {
  assert.deepEqual([5, 65, 3661].map(stopwatch), ["0:05", "1:05", "1:01:01"]);
});

test("sizes of files are in MiB or GiB", () => {
  assert.deepEqual([5 * 2 ** 20, 3 * 2 ** 30].map(fileSize), ["5 MiB", "3 GiB"]);
});

test("the step of a preview is in the name of its file", () => {
  assert.deepEqual(["step-00000120.wav", "last.wav"].map(stepOf), [120, "last.wav"]);
});

test("numbers use the digits of the language", () => {
  useDictionary("fa", {});

  assert.equal(number(12.5), "۱۲٫۵");
});

test("a sentence with values is translated by its pattern", () => {
  useDictionary("ko", { "step {n} of {n2}": "{n2} 중 {n}", "{+state}: {name} runs.": "{name} {+state}", done: "완료" });

  assert.equal(translate("step 3 of 9"), "9 중 3");
  assert.equal(translate("done: ada runs."), "ada 완료");
  assert.equal(translate("  done "), "  완료 ");
});

test("sentences one after the other are translated one by one", () => {
  useDictionary("ko", { "One.": "하나.", "Two.": "둘." });

  assert.equal(translate("One. Two."), "하나. 둘.");
  assert.equal(translate("One.   -   Two."), "하나.   -   둘.");
});

test("a sentence that no dictionary knows stays, and is noted", () => {
  useDictionary("ko", {});

  assert.equal(translate("Nobody said this."), "Nobody said this.");
  assert.deepEqual([...untranslated], ["Nobody said this."]);
});

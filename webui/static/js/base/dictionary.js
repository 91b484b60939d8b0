/* Translates sentences with a dictionary, without knowing the document.

   A dictionary (translations/ko.json, am.json, fa.json) maps whole English sentences; in a key, `{n}`
   stands for a number, `{+x}` for text that is translated too, and any other name in braces for text
   from users. */
import { page } from "./page.js";

/** @type {Record<string, "ltr" | "rtl">} */
export const LANGUAGES = { en: "ltr", ko: "ltr", am: "ltr", fa: "rtl" };
const NUMBER = "[-\u2212+]?[\\d\u06f0-\u06f9][\\d\u06f0-\u06f9.,:\u066b\u066c]*(?:e-?[\\d\u06f0-\u06f9]+)?|-";
const SEPARATOR = /(\s{2,}-\s{2,})/;
const SENTENCES = /(?<=[.!?]) (?=[A-Z'{0-9])/;
const MOST_KEPT = 3000;  // Sentences; chosen by hand, more than the page shows in an hour.

/** Sentences that no dictionary entry matched, for the tests. @type {Set<string>} */
export const untranslated = new Set();
/** @type {Record<string, string>} */
let words = {};
/** @type {{ key: string, names: string[], prefix: string, expression: RegExp }[]} */
let patterns = [];
/** @type {{ each: string[], point: string } | null} */
let digits = null;
/** @type {Map<string, string>} */
let said = new Map();

/** Use a language from now on. @param {string} language @param {Record<string, string>} dictionary */
export function useDictionary(language, dictionary) {
  page.language = language;
  words = dictionary;
  patterns = Object.keys(words).filter((key) => key.includes("{")).map(pattern);
  digits = digitsOf(language);
  said = new Map();
  untranslated.clear();
}

/** Translate one of our sentences; an unknown sentence is returned unchanged. @param {string} text */
export function translate(text) {
  const core = text.trim();
  if (page.language === "en" || !core) return text;
  if (!said.has(core)) {
    if (said.size > MOST_KEPT) said = new Map();
    said.set(core, translated(core));
  }
  return text.replace(core, () => said.get(core) ?? core);
}

/** Convert digits and the decimal point to those of the language. @param {string} text */
export function localDigits(text) {
  const own = digits;
  if (!own) return text;
  return text.replace(/\d+(?:\.\d+)?/g, (number) =>
    [...number].map((letter) => letter === "." ? own.point : own.each[Number(letter)]).join(""));
}

/** @param {string} core @returns {string} */
function translated(core) {
  if (core in words) return words[core];
  if (SEPARATOR.test(core)) {
    return core.split(SEPARATOR).map((part) => SEPARATOR.test(part) ? part : translate(part)).join("");
  }
  for (const { prefix, expression, names, key } of patterns) {
    const found = core.startsWith(prefix) && expression.exec(core);
    if (found) return filled(words[key], names, found);
  }
  const sentences = core.split(SENTENCES);
  if (sentences.length > 1) return sentences.map(translate).join(" ");
  if (core.includes("; ")) return core.split("; ").map(translate).join("; ");
  const colon = core.indexOf(": "), label = core.slice(0, colon);
  if (colon > 0 && label in words) return `${words[label]}: ${translate(core.slice(colon + 2))}`;
  if (/[A-Za-z]{2}/.test(core) && untranslated.size < 500) untranslated.add(core);
  return /^[\d.,:%\s\u00d7x/+-]+$/.test(core) ? localDigits(core) : core;
}

/** @param {string} key */
function pattern(key) {
  /** @type {string[]} */
  const names = [];
  const source = key.split(/(\{[^}]*\})/).map((part) => {
    if (!part.startsWith("{")) return part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const name = part.slice(1, -1);
    names.push(name);
    return /^n\d*$/.test(name) ? `(${NUMBER})` : "([^]+?)";
  }).join("");
  return { key, names, prefix: key.slice(0, key.indexOf("{")), expression: new RegExp(`^${source}$`) };
}

/** @param {string} sentence @param {string[]} names @param {RegExpExecArray} found */
function filled(sentence, names, found) {
  return sentence.replace(/\{([^}]*)\}/g, (place, name) => {
    const at = names.indexOf(name);
    if (at < 0) return place;
    const value = found[at + 1];
    if (/^n\d*$/.test(name)) return localDigits(value);
    if (name.startsWith("+")) return translate(value);
    return LANGUAGES[page.language] === "rtl" ? `\u2068${value}\u2069` : value;
  });
}

/** @param {string} language */
function digitsOf(language) {
  const format = new Intl.NumberFormat(language, { useGrouping: false });
  const each = [...Array(10).keys()].map((digit) => format.format(digit));
  if (each[1] === "1") return null;
  const point = format.formatToParts(1.5).find((part) => part.type === "decimal");
  return { each, point: point ? point.value : "." };
}

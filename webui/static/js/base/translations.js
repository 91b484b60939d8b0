/* Translates every text and accessible label of the page into the chosen language.

   All text in the code is English. A dictionary (words/ko.json, am.json, fa.json) maps whole
   sentences; in a key, `{n}` stands for a number, `{+x}` for text that is translated too, and any
   other name in braces for text from users. Text comes from Gradio, the server and our scripts, so
   it is replaced in one place: in the document, before it is painted. Text from users is never
   translated: see VERBATIM. In English, none of this runs. */
(function () {
  "use strict";
  const t = window.timbre;
  const LANGUAGES = { en: "ltr", ko: "ltr", am: "ltr", fa: "rtl" };
  const VERBATIM = "[translate=no], pre, code, kbd, textarea, script, style, .file-preview, #ledger tbody, " +
    // In the ledger, translate only the columns with our own text: status, reason and remedy.
    "#ledger [data-col]:not([data-col='4'], [data-col='5'], [data-col='6']), " +
    "#listen-run [role=option], #listen-speaker [role=option], #listen-clip [role=option], " +
    "#listen-run input, #listen-speaker input, #listen-clip input, #live-run option, .recent-run b, " +
    "#live-compare option:not([value='']), " +
    ".runs-table td:nth-child(2), .runs-table td:nth-child(8) > div, #queue li b, .differences, " +
    ".fact small, .comparison .legend b, .comparison .preview b, .preview [dir=auto]";
  const ATTRIBUTES = ["placeholder", "aria-label", "title", "data-label"];
  const BLOCKS = "p, li, h1, h2, h3, h4, .fact, .notice";
  const INLINE = ["STRONG", "B", "EM", "I", "SMALL", "CODE", "BDI", "BR"];
  const NUMBER = "[-\u2212+]?[\\d\u06f0-\u06f9][\\d\u06f0-\u06f9.,:\u066b\u066c]*(?:e-?[\\d\u06f0-\u06f9]+)?|-";
  const SEPARATOR = /(\s{2,}-\s{2,})/;
  const SENTENCES = /(?<=[.!?]) (?=[A-Z'{0-9])/;
  const INPUTS_MS = 400;
  let words = {}, patterns = [], digits = null, said = new Map(), observer = null, timer = null;
  let texts = new WeakMap(), blocks = new WeakMap(), attributes = new WeakMap(), inputs = new WeakMap();
  t.language = "en";
  t.untranslated = new Set();

  /* Translate one of our sentences; an unknown sentence is returned unchanged. */
  t.translate = function (text) {
    if (t.language === "en") return text;
    const core = text.trim();
    if (!core) return text;
    if (!said.has(core)) {
      if (said.size > 3000) said = new Map();
      said.set(core, translated(core));
    }
    return text.replace(core, () => said.get(core));
  };

  /* Convert digits and the decimal point to those of the language. */
  t.digits = function (text) {
    if (!digits) return text;
    return text.replace(/\d+(?:\.\d+)?/g, (number) =>
      [...number].map((letter) => letter === "." ? digits.point : digits.each[letter]).join(""));
  };

  /* The English text of an element, whatever language it is shown in. */
  t.originalText = function (element) {
    const block = blocks.get(element), node = element.firstChild;
    if (block && isShown(element, block)) return block.english;
    const known = node && node === element.lastChild && texts.get(node);
    return known && known.shown === node.data ? known.english : element.textContent;
  };

  t.setLanguage = async function (language) {
    const chosen = language in LANGUAGES ? language : "en";
    if (chosen === t.language) return addressPage();
    if (chosen !== "en") {
      const answer = await fetch(`studio/page/${chosen}.json`);
      if (!answer.ok) return;
      words = await answer.json();
    } else words = {};
    t.language = chosen;
    patterns = Object.keys(words).filter((key) => key.includes("{")).map(pattern);
    digits = digitsOf(chosen);
    said = new Map();
    t.untranslated.clear();
    addressPage();
    renderAll();
    watch();
    document.dispatchEvent(new Event("timbre-language"));
  };

  function translated(core) {
    if (core in words) return words[core];
    if (SEPARATOR.test(core)) {
      return core.split(SEPARATOR).map((part) => SEPARATOR.test(part) ? part : t.translate(part)).join("");
    }
    for (const { prefix, expression, names, key } of patterns) {
      const found = core.startsWith(prefix) && expression.exec(core);
      if (found) return filled(words[key], names, found);
    }
    const sentences = core.split(SENTENCES);
    if (sentences.length > 1) return sentences.map(t.translate).join(" ");
    if (core.includes("; ")) return core.split("; ").map(t.translate).join("; ");
    const colon = core.indexOf(": "), label = core.slice(0, colon);
    if (colon > 0 && label in words) return `${words[label]}: ${t.translate(core.slice(colon + 2))}`;
    if (/[A-Za-z]{2}/.test(core) && t.untranslated.size < 500) t.untranslated.add(core);
    return /^[\d.,:%\s\u00d7x/+-]+$/.test(core) ? t.digits(core) : core;
  }

  function pattern(key) {
    const names = [];
    const source = key.split(/(\{[^}]*\})/).map((part) => {
      if (!part.startsWith("{")) return part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
      const name = part.slice(1, -1);
      names.push(name);
      return /^n\d*$/.test(name) ? `(${NUMBER})` : "([^]+?)";
    }).join("");
    return { key, names, prefix: key.slice(0, key.indexOf("{")), expression: new RegExp(`^${source}$`) };
  }

  function filled(sentence, names, found) {
    return sentence.replace(/\{([^}]*)\}/g, (place, name) => {
      const at = names.indexOf(name);
      if (at < 0) return place;
      const value = found[at + 1];
      if (/^n\d*$/.test(name)) return t.digits(value);
      if (name.startsWith("+")) return t.translate(value);
      return LANGUAGES[t.language] === "rtl" ? `\u2068${value}\u2069` : value;
    });
  }

  function digitsOf(language) {
    const format = new Intl.NumberFormat(language, { useGrouping: false });
    const each = [...Array(10).keys()].map((digit) => format.format(digit));
    if (each[1] === "1") return null;
    return { each, point: format.formatToParts(1.5).find((part) => part.type === "decimal").value };
  }

  function addressPage() {
    const root = document.documentElement;
    if (root.lang !== t.language) root.lang = t.language;
    root.dir = LANGUAGES[t.language];
  }

  function renderAll() {
    if (document.body) render(document.body);
    renderInputs();
  }

  function render(root) {
    if (root.nodeType === Node.TEXT_NODE) return renderText(root);
    if (root.nodeType !== Node.ELEMENT_NODE || root.closest(VERBATIM)) return;
    renderAttributes(root);
    // Collect the nodes first, because rendering a block replaces nodes during the walk.
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT,
      (node) => node.nodeType === Node.ELEMENT_NODE && node.matches(VERBATIM)
        ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
    const found = [];
    while (walker.nextNode()) found.push(walker.currentNode);
    for (const node of found) {
      if (node.nodeType === Node.TEXT_NODE) renderText(node);
      else renderAttributes(node);
    }
  }

  function renderText(node) {
    const parent = node.parentElement;
    if (!parent || !node.isConnected || !node.data.trim() || parent.closest(VERBATIM)) return;
    const block = parent.closest(BLOCKS);
    if (block && renderBlock(block)) return;
    let known = texts.get(node);
    if (!known || known.shown !== node.data) known = { english: node.data };
    known.shown = t.translate(known.english);
    texts.set(node, known);
    if (node.data !== known.shown) node.data = known.shown;
  }

  /* Translate a sentence with bold words as a whole, because word order differs by language. */
  function renderBlock(block) {
    let known = blocks.get(block);
    if (known && !isShown(block, known)) known = null;
    if (!known) {
      const parts = [...block.querySelectorAll("*")];
      const isInline = (part) => INLINE.includes(part.tagName) || part.matches(".notice > .quiet");
      if (!parts.length || !parts.every(isInline)) return false;
      const english = [...block.childNodes].map((node) => node.tagName === "BR" ? " " : node.textContent);
      known = { english: english.join(""), before: [...block.childNodes] };
    }
    if (known.language === t.language) return true;
    const shown = t.translate(known.english);
    t.untranslated.delete(shown.trim());
    if (shown === known.english) {
      if (blocks.delete(block)) block.replaceChildren(...known.before);
      return false;
    }
    known.shown = shown.split("**").map((part, i) => i % 2 ? t.h("strong", {}, part)
      : document.createTextNode(part));
    known.language = t.language;
    blocks.set(block, known);
    block.replaceChildren(...known.shown);
    return true;
  }

  function isShown(block, known) {
    return known.shown && block.childNodes.length === known.shown.length &&
      known.shown.every((node, i) => node === block.childNodes[i]);
  }

  function renderAttributes(element) {
    for (const name of ATTRIBUTES) {
      const now = element.getAttribute(name);
      if (!now) continue;
      const all = attributes.get(element) || {};
      if (!all[name] || all[name].shown !== now) all[name] = { english: now };
      all[name].shown = t.translate(all[name].english);
      attributes.set(element, all);
      if (all[name].shown !== now) element.setAttribute(name, all[name].shown);
    }
  }

  /* Translate the field of a dropdown, except while the user types, as Gradio searches in English. */
  function renderInputs() {
    for (const input of document.querySelectorAll("input[role=combobox]")) {
      if (input !== document.activeElement && !input.matches(VERBATIM)) renderInput(input, t.translate);
    }
  }

  function renderInput(input, say) {
    let known = inputs.get(input);
    if (!known || known.shown !== input.value) known = { english: input.value };
    known.shown = say(known.english);
    inputs.set(input, known);
    if (input.value !== known.shown) input.value = known.shown;
  }

  function watch() {
    clearInterval(timer);
    if (observer) observer.disconnect();
    if (t.language === "en") return;
    observer = observer || new MutationObserver(renderChanges);
    observer.observe(document.body, { subtree: true, childList: true, characterData: true,
      attributes: true, attributeFilter: ATTRIBUTES });
    timer = setInterval(() => document.hidden || renderInputs(), INPUTS_MS);
  }

  function renderChanges(records) {
    for (const { type, target, addedNodes } of records) {
      if (type === "attributes") target.closest(VERBATIM) || renderAttributes(target);
      else if (type === "characterData") renderText(target);
      else for (const node of addedNodes) if (node.isConnected) render(node);
    }
  }

  document.addEventListener("focusin", (event) => {
    const input = event.target;
    if (inputs.has(input)) renderInput(input, (text) => text);
  });
  document.addEventListener("change", (event) => {
    if (event.target.id !== "language") return;
    t.setLanguage(event.target.value);
    try {
      localStorage.setItem("timbre-language", event.target.value);
    } catch (error) { /* private windows may refuse storage; the choice is then not remembered */ }
  });

  t.mountHeader = function (element) {
    const choice = element.querySelector("#language");
    choice.value = t.language;
    document.addEventListener("timbre-language", () => { choice.value = t.language; });
  };

  function firstLanguage() {
    try {
      const kept = localStorage.getItem("timbre-language");
      if (kept) return kept;
    } catch (error) { /* as above */ }
    const wanted = (navigator.languages || [navigator.language]).map((tag) => tag.slice(0, 2));
    return wanted.find((tag) => tag in LANGUAGES) || "en";
  }

  // Gradio sets the document's language to the browser's after rendering, so set it back.
  new MutationObserver(addressPage).observe(document.documentElement, { attributeFilter: ["lang"] });
  t.setLanguage(firstLanguage());
})();

/* Shows every text and accessible label of the page in the chosen language.

   All text in the code is English. Text comes from Gradio, the server and our scripts, so it is
   replaced in one place: in the document, before it is painted. Text from users is never
   translated: see VERBATIM. In English, none of this runs. */
import { LANGUAGES, translate, untranslated, useDictionary } from "./dictionary.js";
import { page } from "./page.js";
import { recall, remember } from "./storage.js";

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
const INPUTS_MS = 400;

/** @typedef {{ english: string, shown: string }} Known */
/** @typedef {{ english: string, before: ChildNode[], shown?: ChildNode[], language?: string }} Block */
/** @type {WeakMap<Node, Known>} */
const texts = new WeakMap();
/** @type {WeakMap<Element, Block>} */
const blocks = new WeakMap();
/** @type {WeakMap<Element, Record<string, Known>>} */
const attributes = new WeakMap();
/** @type {WeakMap<HTMLInputElement, Known>} */
const inputs = new WeakMap();
/** @type {MutationObserver | null} */
let observer = null;
/** @type {ReturnType<typeof setInterval> | undefined} */
let timer;

/** The English text of an element, whatever language it is shown in. @param {Element} element */
export function originalText(element) {
  const block = blocks.get(element), node = element.firstChild;
  if (block && isShown(element, block)) return block.english;
  const known = node && node === element.lastChild ? texts.get(node) : null;
  return known && known.shown === /** @type {Text} */ (node).data ? known.english : element.textContent || "";
}

/** Set the text only if it changed, to avoid needless layout. @param {Element} element @param {string} text */
export function setText(element, text) {
  if (originalText(element) !== text) element.textContent = text;
}

/** @param {string} language */
export async function setLanguage(language) {
  const chosen = language in LANGUAGES ? language : "en";
  if (chosen === page.language) return addressPage();
  /** @type {Record<string, string>} */
  let words = {};
  if (chosen !== "en") {
    const answer = await fetch(`studio/page/${chosen}.json`);
    if (!answer.ok) return;
    words = await answer.json();
  }
  useDictionary(chosen, words);
  addressPage();
  if (document.body) render(document.body);
  renderInputs();
  watch();
  document.dispatchEvent(new Event("timbre-language"));
}

/** Choose the language, and follow the list in the page's header from now on. */
export function startTranslating() {
  document.addEventListener("focusin", (event) => {
    const input = /** @type {HTMLInputElement} */ (event.target);
    if (inputs.has(input)) renderInput(input, (text) => text);
  });
  document.addEventListener("change", (event) => {
    const choice = /** @type {HTMLSelectElement} */ (event.target);
    if (choice.id !== "language") return;
    setLanguage(choice.value);
    remember("timbre-language", choice.value);
  });
  // Gradio sets the document's language to the browser's after rendering, so set it back.
  new MutationObserver(addressPage).observe(document.documentElement, { attributeFilter: ["lang"] });
  const wanted = navigator.languages.map((tag) => tag.slice(0, 2));
  setLanguage(recall("timbre-language") || wanted.find((tag) => tag in LANGUAGES) || "en");
}

/** @param {HTMLElement} element */
export function mountHeader(element) {
  const choice = /** @type {HTMLSelectElement} */ (element.querySelector("#language"));
  const show = () => { choice.value = page.language; };
  document.addEventListener("timbre-language", show);
  show();
}

function addressPage() {
  const root = document.documentElement;
  if (root.lang !== page.language) root.lang = page.language;
  root.dir = LANGUAGES[page.language];
}

/** @param {Node} root */
function render(root) {
  if (root instanceof Text) return renderText(root);
  if (!(root instanceof Element) || root.closest(VERBATIM)) return;
  renderAttributes(root);
  // Collect the nodes first, because rendering a block replaces nodes during the walk.
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT,
    (node) => node instanceof Element && node.matches(VERBATIM)
      ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
  const found = [];
  while (walker.nextNode()) found.push(walker.currentNode);
  for (const node of found) {
    if (node instanceof Text) renderText(node);
    else renderAttributes(/** @type {Element} */ (node));
  }
}

/** @param {Text} node */
function renderText(node) {
  const parent = node.parentElement;
  if (!parent || !node.isConnected || !node.data.trim() || parent.closest(VERBATIM)) return;
  const block = parent.closest(BLOCKS);
  if (block && renderBlock(block)) return;
  const known = knownOr(texts.get(node), node.data);
  texts.set(node, known);
  if (node.data !== known.shown) node.data = known.shown;
}

/** What a text was in English, if it is still shown; now in the language of the page.
 * @param {Known | undefined} known @param {string} now @param {(text: string) => string} [say] */
function knownOr(known, now, say = translate) {
  const english = known && known.shown === now ? known.english : now;
  return { english, shown: say(english) };
}

/** Translate a sentence with bold words as a whole, because word order differs by language.
 * @param {Element} block */
function renderBlock(block) {
  let known = blocks.get(block);
  if (!known || !isShown(block, known)) {
    const parts = [...block.querySelectorAll("*")];
    const isInline = (/** @type {Element} */ part) =>
      INLINE.includes(part.tagName) || part.matches(".notice > .quiet");
    if (!parts.length || !parts.every(isInline)) return false;
    const english = [...block.childNodes].map((node) => node.nodeName === "BR" ? " " : node.textContent);
    known = { english: english.join(""), before: [...block.childNodes] };
  }
  if (known.language === page.language) return true;
  const shown = translate(known.english);
  untranslated.delete(shown.trim());
  if (shown === known.english) {
    if (blocks.delete(block)) block.replaceChildren(...known.before);
    return false;
  }
  known.shown = shown.split("**").map((part, i) => {
    if (i % 2 === 0) return document.createTextNode(part);
    const strong = document.createElement("strong");
    strong.textContent = part;
    return strong;
  });
  known.language = page.language;
  blocks.set(block, known);
  block.replaceChildren(...known.shown);
  return true;
}

/** @param {Element} block @param {Block} known */
function isShown(block, known) {
  return known.shown && block.childNodes.length === known.shown.length &&
    known.shown.every((node, i) => node === block.childNodes[i]);
}

/** @param {Element} element */
function renderAttributes(element) {
  for (const name of ATTRIBUTES) {
    const now = element.getAttribute(name);
    if (!now) continue;
    const all = attributes.get(element) || {};
    all[name] = knownOr(all[name], now);
    attributes.set(element, all);
    if (all[name].shown !== now) element.setAttribute(name, all[name].shown);
  }
}

/** Translate the field of a dropdown, except while the user types, as Gradio searches in English. */
function renderInputs() {
  for (const input of document.querySelectorAll("input[role=combobox]")) {
    if (input === document.activeElement || input.matches(VERBATIM)) continue;
    renderInput(/** @type {HTMLInputElement} */ (input), translate);
  }
}

/** @param {HTMLInputElement} input @param {(text: string) => string} say */
function renderInput(input, say) {
  const known = knownOr(inputs.get(input), input.value, say);
  inputs.set(input, known);
  if (input.value !== known.shown) input.value = known.shown;
}

function watch() {
  clearInterval(timer);
  if (observer) observer.disconnect();
  if (page.language === "en") return;
  observer = observer || new MutationObserver(renderChanges);
  observer.observe(document.body, { subtree: true, childList: true, characterData: true,
    attributes: true, attributeFilter: ATTRIBUTES });
  timer = setInterval(() => document.hidden || renderInputs(), INPUTS_MS);
}

/** @param {MutationRecord[]} records */
function renderChanges(records) {
  for (const { target, addedNodes } of records) {
    for (const node of addedNodes) if (node.isConnected) render(node);
    if (addedNodes.length) continue;
    if (target instanceof Text) renderText(target);
    else if (target instanceof Element && !target.closest(VERBATIM)) renderAttributes(target);
  }
}

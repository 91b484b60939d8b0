/* Starts the page's scripts, and publishes what Python calls by name as the one global, `timbre`.

   Gradio may render an element before this script has loaded. Until then `timbre` is a list of calls
   (webui/scripts.py), which are made here; later calls are made at once. */
import { startAccess } from "./base/access.js";
import { untranslated } from "./base/dictionary.js";
import { startLogin } from "./base/login.js";
import { openLinkedTab, openTab, startNavigation, switchTheme } from "./base/navigation.js";
import { page } from "./base/page.js";
import { show, startPolling } from "./base/poll.js";
import { mountHeader, startTranslating } from "./base/translations.js";
import { checkData, mountFindings, setDraft, startDraftGuard } from "./tabs/data.js";
import { checkForm, mountFieldErrors, showFieldErrors, startFieldChecks } from "./tabs/fields.js";
import { askFields, chooseDataset, choosePreset, mountPlan, mountPresets, startNotingEdits, takeFields,
  takePlan } from "./tabs/form_fill.js";
import { mountForm, setField, startKeepingValues, withForm } from "./tabs/options.js";
import { listenTo, mountPreviews } from "./tabs/previews.js";
import { mountRecent } from "./tabs/recent.js";
import { mountStatusBar } from "./tabs/status_bar.js";

/** What the page needs at once. Python names functions that fill an element in `mount`, and those that
 * Gradio's events call in `js`. */
const PUBLISHED = {
  mountFieldErrors, mountFindings, mountForm, mountHeader, mountPlan, mountPresets, mountPreviews, mountRecent,
  mountStatusBar, askFields, checkData, checkForm, chooseDataset, choosePreset, listenTo, openLinkedTab, openTab,
  setDraft, setField, show, showFieldErrors, switchTheme, takeFields, takePlan, withForm,
};

/** What a tab needs when it is first opened: their modules are loaded then.
 * @type {[string[], () => Promise<Record<string, any>>][]} */
const LATER = [
  [["mountLive"], () => import("./tabs/live.js")],
  [["mountRuns"], () => import("./tabs/runs.js")],
  [["mountRace", "showRace"], () => import("./tabs/race.js")],
  [["mountCut", "refreshSegmentation"], () => import("./tabs/segmentation.js")],
  [["mountSpeech", "speakNow"], () => import("./tabs/speech.js")],
  [["mountListeningTest", "countVote"], () => import("./tabs/listening_test.js")],
  [["mountRates", "mountMeasure", "refreshRates", "refreshMeasurements"], () => import("./tabs/trials.js")],
];

/** @type {Record<string, (...given: any[]) => unknown>} */
const functions = { ...PUBLISHED };
for (const [names, load] of LATER) {
  for (const name of names) functions[name] = async (...given) => { (await load())[name](...given); };
}

/** @param {[string, ...unknown[]]} call */
function push([name, ...given]) {
  functions[name](...given);
}

const waiting = Array.isArray(window.timbre) ? window.timbre : [];
// The tests wait for the state of the page, so the page is the object that is published.
window.timbre = Object.assign(page, functions, { push, untranslated });
startTranslating();
startNavigation();
startLogin();
startAccess();
startKeepingValues();
startFieldChecks();
startNotingEdits();
startDraftGuard();
startPolling();
waiting.forEach(push);

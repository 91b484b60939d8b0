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
import { mountFindings, setDraft, startDraftGuard } from "./tabs/data.js";
import { checkForm, mountFieldErrors, showFieldErrors, startFieldChecks } from "./tabs/fields.js";
import { askFields, chooseDataset, chooseFamily, choosePreset, mountPlan, startNotingEdits, takeFields,
  takePlan } from "./tabs/form_fill.js";
import { countVote, mountListeningTest } from "./tabs/listening_test.js";
import { mountLive } from "./tabs/live.js";
import { listenTo, mountPreviews } from "./tabs/previews.js";
import { mountRace, showRace } from "./tabs/race.js";
import { mountRecent, mountRuns } from "./tabs/runs.js";
import { mountCut, refreshSegmentation } from "./tabs/segmentation.js";
import { mountSpeech, speakNow, speech } from "./tabs/speech.js";
import { mountStatusBar } from "./tabs/status_bar.js";
import { mountMeasure, mountRates, refreshMeasurements, refreshRates } from "./tabs/trials.js";

/** What fills an element of the page; Python names it in `mount`. */
const MOUNTS = {
  mountCut, mountFieldErrors, mountFindings, mountHeader, mountListeningTest, mountLive, mountMeasure, mountPlan,
  mountPreviews, mountRace, mountRates, mountRecent, mountRuns, mountSpeech, mountStatusBar,
};

/** What Gradio's events call; Python names it in `js`. */
const HANDLERS = {
  askFields, checkForm, chooseDataset, chooseFamily, choosePreset, countVote, listenTo, openLinkedTab, openTab,
  refreshMeasurements, refreshRates, refreshSegmentation, setDraft, show, showFieldErrors, showRace, speakNow,
  switchTheme, takeFields, takePlan,
};

/** @type {Record<string, (...given: any[]) => unknown>} */
const callable = { ...MOUNTS, ...HANDLERS };

/** @param {[string, ...unknown[]]} call */
function push([name, ...given]) {
  callable[name](...given);
}

const waiting = Array.isArray(window.timbre) ? window.timbre : [];
// The tests wait for the state of the page, so the page is the object that is published.
window.timbre = Object.assign(page, HANDLERS, { push, speech, untranslated });
startTranslating();
startNavigation();
startLogin();
startAccess();
startFieldChecks();
startNotingEdits();
startDraftGuard();
startPolling();
waiting.forEach(push);

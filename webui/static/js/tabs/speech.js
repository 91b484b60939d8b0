/* Plays speech while it is being generated.

   An audio element with the URL as its source starts only after several seconds of audio, because
   Chromium first probes a 16-bit WAV for other formats. So the samples are read here and queued
   at their own sample rate without gaps. At the end the player gets the complete WAV. */
import { button, h } from "../base/dom.js";
import { page } from "../base/page.js";
import { setText } from "../base/translations.js";

const HEADER_BYTES = 44;
const LEAD_S = 0.1;  // Delay before playback, against gaps between chunks; chosen by hand.
const INTERRUPTED = "Playback was interrupted. Try again, or use Speak to file to see the error.";

const { speech } = page;
/** @type {Player} */
let player;
let announce = () => {};
/** Ends when there is a player. @type {Promise<void>} */
const mounted = new Promise((resolve) => { announce = resolve; });

/** Put the player into an element; it is hidden until something is spoken. @param {HTMLElement} element */
export function mountSpeech(element) {
  player = new Player(element);
  announce();
}

/** Request a sentence and play it while it is generated. @param {string | null} run
 * @param {string | null} text @param {string | null} speaker @param {string | null} checkpoint */
export async function speakNow(run, text, speaker, checkpoint) {
  const query = new URLSearchParams({
    run: run || "", text: text || "", speaker: speaker || "", checkpoint: checkpoint || "best",
  });
  await mounted;
  await player.speak("studio/speech?" + query);
}

/** The server's sentence about why it does not speak. */
class Refusal extends Error {}

class Player {
  /** @type {Spoken | null} */
  spoken = null;

  /** @param {HTMLElement} element */
  constructor(element) {
    this.audio = h("audio", { controls: true, hidden: true, "aria-label": "Speech" });
    this.words = h("span", { class: "quiet", role: "status" });
    this.stop = button("Stop", () => this.end("stopped"), { hidden: true });
    this.problem = h("p", { class: "notice error", role: "alert", hidden: true });
    // Pausing the player mutes it, but the audio context would keep running.
    this.audio.addEventListener("pause", () => this.spoken?.queue?.context.suspend());
    this.audio.addEventListener("play", () => this.spoken?.queue?.context.resume());
    element.replaceChildren(h("div", { class: "speech" }, this.audio,
      h("div", { class: "speech-row" }, this.stop, this.words)), this.problem);
  }

  /** @param {string} url */
  async speak(url) {
    this.end("waiting");
    const mine = this.spoken = new Spoken();
    speech.firstSoundMs = null;
    this.problem.hidden = true;
    this.stop.hidden = false;
    setText(this.words, "Loading the voice...");
    try {
      await this.listen(mine, url);
    } catch (error) {
      if (this.spoken === mine) this.fail(error instanceof Refusal ? error.message : INTERRUPTED);
    }
  }

  /** @param {Spoken} mine @param {string} url */
  async listen(mine, url) {
    const answer = await fetch(url, { cache: "no-store", signal: mine.control.signal });
    if (!answer.ok || !answer.body) throw new Refusal((await answer.json()).error);
    const reader = answer.body.getReader();
    let left = new Uint8Array(0);
    for (;;) {
      const { done, value } = await reader.read();
      if (this.spoken !== mine || done) break;
      mine.parts.push(value);
      left = joined([left, value]);
      if (!mine.queue) {
        if (left.length < HEADER_BYTES) continue;
        mine.queue = new SampleQueue(new DataView(left.buffer).getUint32(24, true));
        this.begin(mine.queue);
        left = left.slice(HEADER_BYTES);
      }
      const even = left.length - (left.length % 2);
      if (even) {
        mine.queue.add(left.slice(0, even));
        this.noteSound(mine);
      }
      left = left.slice(even);
    }
    if (this.spoken !== mine) return;
    const { queue } = mine;
    if (!queue?.last) throw new Error("no sound");
    queue.last.onended = () => this.finish(mine, queue);
    if (queue.isPlayed) this.finish(mine, queue);
  }

  /** @param {SampleQueue} queue */
  begin(queue) {
    this.audio.hidden = false;
    this.audio.srcObject = queue.sink.stream;
    this.audio.play().catch(() => setText(this.words, "Press play to hear it."));
  }

  /** @param {Spoken} mine */
  noteSound(mine) {
    if (speech.firstSoundMs != null) return;
    speech.firstSoundMs = performance.now() - mine.askedAt + LEAD_S * 1000;
    speech.state = "playing";
    setText(this.words, "First sound after " + (speech.firstSoundMs / 1000).toFixed(1) + " s");
  }

  /** At the end of playback, give the player the complete WAV, so that it can be replayed.
   * @param {Spoken} mine @param {SampleQueue} queue */
  finish(mine, queue) {
    if (this.spoken !== mine || speech.state === "ended") return;
    mine.url = URL.createObjectURL(new Blob([completeWav(mine.parts)], { type: "audio/wav" }));
    queue.context.close();
    mine.queue = null;
    this.audio.srcObject = null;
    this.audio.src = mine.url;
    this.stop.hidden = true;
    speech.state = "ended";
  }

  /** Abort the request and reset the player; the server then kills the child process. @param {string} state */
  end(state) {
    const mine = this.spoken;
    this.spoken = null;
    speech.state = state;
    this.audio.hidden = this.stop.hidden = true;
    setText(this.words, "");
    if (!mine) return;
    mine.control.abort();
    mine.queue?.context.close();
    if (mine.url) URL.revokeObjectURL(mine.url);
    this.audio.srcObject = null;
    this.audio.removeAttribute("src");
  }

  /** @param {string} problem */
  fail(problem) {
    this.end("failed");
    setText(this.problem, problem);
    this.problem.hidden = false;
  }
}

/** One request: what has arrived of it, and its samples while they play. */
class Spoken {
  control = new AbortController();
  askedAt = performance.now();
  /** @type {Uint8Array<ArrayBuffer>[]} */
  parts = [];
  /** @type {SampleQueue | null} */
  queue = null;
  url = "";
}

/** Plays 16-bit samples one after the other. */
class SampleQueue {
  next = 0;
  /** @type {AudioBufferSourceNode | null} */
  last = null;

  /** @param {number} rate */
  constructor(rate) {
    this.rate = rate;
    this.context = new AudioContext({ sampleRate: rate });
    this.sink = this.context.createMediaStreamDestination();
  }

  get isPlayed() {
    return this.context.currentTime * this.rate > this.next;
  }

  /** Queue samples after the previous ones; late chunks start as soon as possible. @param {Uint8Array<ArrayBuffer>} bytes */
  add(bytes) {
    const samples = new Int16Array(bytes.buffer);
    const buffer = this.context.createBuffer(1, samples.length, this.rate);
    const channel = buffer.getChannelData(0);
    for (let i = 0; i < samples.length; i++) channel[i] = samples[i] / 32768;
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.sink);
    // Start at whole samples: between two samples, a chunk is interpolated and its edges click.
    const now = Math.round(this.context.currentTime * this.rate);
    const start = this.next > now ? this.next : now + Math.round(LEAD_S * this.rate);
    source.start(start / this.rate);
    this.next = start + samples.length;
    this.last = source;
  }
}

/** The streamed WAV with its true lengths in the header. @param {Uint8Array<ArrayBuffer>[]} parts */
export function completeWav(parts) {
  const wave = joined(parts), view = new DataView(wave.buffer);
  view.setUint32(4, wave.length - 8, true);
  view.setUint32(40, wave.length - HEADER_BYTES, true);
  return wave;
}

/** @param {Uint8Array<ArrayBuffer>[]} parts */
function joined(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

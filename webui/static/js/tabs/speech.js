/* Plays speech while it is being generated.

   An audio element with the URL as its source starts only after several seconds of audio, because
   Chromium first probes a 16-bit WAV for other formats. So the samples are read here and queued
   at their own sample rate without gaps. At the end the player gets the complete WAV. */
(function () {
  "use strict";
  const t = window.timbre;
  const HEADER_BYTES = 44;
  const LEAD_S = 0.1;  // Delay before playback, against gaps between chunks; chosen by hand.
  t.speech = { state: "idle", firstSoundMs: null };
  let shown = null;
  let spoken = null;

  /* Put the player into an element; it is hidden until something is spoken. */
  t.mountSpeech = function (element) {
    const audio = t.h("audio", { controls: true, hidden: true, "aria-label": "Speech" });
    const words = t.h("span", { class: "quiet", role: "status" });
    const stop = t.h("button", { type: "button", hidden: true, onclick: () => end("stopped") },
      "Stop");
    const problem = t.h("p", { class: "notice error", role: "alert", hidden: true });
    shown = { audio, words, stop, problem };
    // Pausing the player mutes it, but the audio context would keep running.
    audio.addEventListener("pause", () => spoken && spoken.context && spoken.context.suspend());
    audio.addEventListener("play", () => spoken && spoken.context && spoken.context.resume());
    element.replaceChildren(
      t.h("div", { class: "speech" }, audio, t.h("div", { class: "speech-row" }, stop, words)),
      problem);
  };

  /* Request a sentence and play it while it is generated. */
  t.speakNow = async function (run, text, speaker, checkpoint) {
    if (!shown) return;
    end("waiting");
    const mine = { control: new AbortController(), askedAt: performance.now(), parts: [] };
    spoken = mine;
    t.speech.firstSoundMs = null;
    shown.problem.hidden = true;
    shown.stop.hidden = false;
    t.setText(shown.words, "Loading the voice...");
    const query = new URLSearchParams({
      run: run || "", text: text || "", speaker: speaker || "", checkpoint: checkpoint || "best",
    });
    try {
      await listen(mine, "studio/speech?" + query);
    } catch (error) {
      if (spoken === mine) fail(error.isSentence ? error.message : "Playback was interrupted. Try again, " +
        "or use Speak to file to see the error.");
    }
  };

  async function listen(mine, url) {
    const answer = await fetch(url, { cache: "no-store", signal: mine.control.signal });
    if (!answer.ok) {
      throw Object.assign(new Error((await answer.json()).error), { isSentence: true });
    }
    const reader = answer.body.getReader();
    let left = new Uint8Array(0);
    for (;;) {
      const { done, value } = await reader.read();
      if (spoken !== mine || done) break;
      mine.parts.push(value);
      left = joined([left, value]);
      if (!mine.rate) {
        if (left.length < HEADER_BYTES) continue;
        begin(mine, new DataView(left.buffer).getUint32(24, true));
        left = left.slice(HEADER_BYTES);
      }
      const even = left.length - (left.length % 2);
      if (even) queue(mine, left.slice(0, even));
      left = left.slice(even);
    }
    if (spoken !== mine) return;
    if (!mine.last) throw new Error("no sound");
    mine.last.onended = () => finish(mine);
    if (mine.context.currentTime * mine.rate > mine.next) finish(mine);
  }

  function begin(mine, rate) {
    mine.rate = rate;
    mine.context = new AudioContext({ sampleRate: rate });
    mine.sink = mine.context.createMediaStreamDestination();
    mine.next = 0;
    shown.audio.hidden = false;
    shown.audio.srcObject = mine.sink.stream;
    shown.audio.play().catch(() => t.setText(shown.words, "Press play to hear it."));
  }

  /* Queue 16-bit samples after the previous ones; late chunks start as soon as possible. */
  function queue(mine, bytes) {
    const samples = new Int16Array(bytes.buffer);
    const buffer = mine.context.createBuffer(1, samples.length, mine.rate);
    const channel = buffer.getChannelData(0);
    for (let i = 0; i < samples.length; i++) channel[i] = samples[i] / 32768;
    const source = mine.context.createBufferSource();
    source.buffer = buffer;
    source.connect(mine.sink);
    // Start at whole samples: between two samples, a chunk is interpolated and its edges click.
    const now = Math.round(mine.context.currentTime * mine.rate);
    const start = mine.next > now ? mine.next : now + Math.round(LEAD_S * mine.rate);
    source.start(start / mine.rate);
    mine.next = start + samples.length;
    mine.last = source;
    if (t.speech.firstSoundMs != null) return;
    t.speech.firstSoundMs = performance.now() - mine.askedAt + LEAD_S * 1000;
    t.speech.state = "playing";
    t.setText(shown.words, "First sound after " + (t.speech.firstSoundMs / 1000).toFixed(1) + " s");
  }

  /* At the end of playback, give the player the complete WAV, so that it can be replayed. */
  function finish(mine) {
    if (spoken !== mine || t.speech.state === "ended") return;
    const wave = joined(mine.parts);
    const view = new DataView(wave.buffer);
    view.setUint32(4, wave.length - 8, true);
    view.setUint32(40, wave.length - HEADER_BYTES, true);
    mine.url = URL.createObjectURL(new Blob([wave], { type: "audio/wav" }));
    mine.context.close();
    mine.context = null;
    shown.audio.srcObject = null;
    shown.audio.src = mine.url;
    shown.stop.hidden = true;
    t.speech.state = "ended";
  }

  /* Abort the request and reset the player; the server then kills the child process. */
  function end(state) {
    const mine = spoken;
    spoken = null;
    t.speech.state = state;
    shown.audio.hidden = shown.stop.hidden = true;
    t.setText(shown.words, "");
    if (!mine) return;
    mine.control.abort();
    if (mine.context) mine.context.close();
    if (mine.url) URL.revokeObjectURL(mine.url);
    shown.audio.srcObject = null;
    shown.audio.removeAttribute("src");
  }

  function fail(problem) {
    end("failed");
    t.setText(shown.problem, problem);
    shown.problem.hidden = false;
  }

  function joined(parts) {
    const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
      whole.set(part, at);
      at += part.length;
    }
    return whole;
  }
})();

/* Speech that plays while it is made.

   A player given the address itself starts only after several seconds of sound: Chromium looks for
   other formats inside a 16-bit WAV first. So the samples are read here and queued one after the
   other, at their own rate, so that the pieces join. At the end the player gets the whole WAV. */
(function () {
  "use strict";
  const t = window.timbre;
  const HEADER_BYTES = 44;
  const LEAD_S = 0.1;
  t.speech = { state: "idle", firstSoundMs: null };
  let shown = null;
  let spoken = null;

  /* Fill an element with the player; it stays hidden until something is spoken. */
  t.mountSpeech = function (element) {
    const audio = t.h("audio", { controls: true, hidden: true, "aria-label": "Speech" });
    const words = t.h("span", { class: "quiet", role: "status" });
    const stop = t.h("button", { type: "button", hidden: true, onclick: () => end("stopped") },
      "Stop");
    const problem = t.h("p", { class: "notice error", role: "alert", hidden: true });
    shown = { audio, words, stop, problem };
    // What the player's own button pauses would otherwise go on unheard.
    audio.addEventListener("pause", () => spoken && spoken.context && spoken.context.suspend());
    audio.addEventListener("play", () => spoken && spoken.context && spoken.context.resume());
    element.replaceChildren(
      t.h("div", { class: "speech" }, audio, t.h("div", { class: "speech-row" }, stop, words)),
      problem);
  };

  /* Ask for a sentence and play it as it comes. */
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
      if (spoken === mine) fail(error.isSentence ? error.message : "The sound broke off. Try again, " +
        "or speak it into a file to see why.");
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

  /* Queue 16-bit samples behind those that came before; late ones start as soon as they can. */
  function queue(mine, bytes) {
    const samples = new Int16Array(bytes.buffer);
    const buffer = mine.context.createBuffer(1, samples.length, mine.rate);
    const channel = buffer.getChannelData(0);
    for (let i = 0; i < samples.length; i++) channel[i] = samples[i] / 32768;
    const source = mine.context.createBufferSource();
    source.buffer = buffer;
    source.connect(mine.sink);
    // Counted in samples: between two of them a piece would be interpolated, and its edges click.
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

  /* All was heard: the player gets the whole, to hear again. */
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

  /* Let go of the sound: the server then ends the process that makes it. */
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

/* The tiles of the live panel: which numbers they show, and the words beside them. */
(function () {
  "use strict";
  const t = window.timbre;
  /* Label, metric, digits, and a function from the run's series to the text after the number. */
  const TILES = [
    ["Loss", "train/loss", 4, () => ""],
    ["Eval loss", "val/loss", 4, (series) => bestWords(series)],
    ["Seconds / step", "perf/s_per_step", 3, () => ""],
    ["Audio", "perf/audio_s_per_s", 3, () => "x real time"],
    ["Learning rate", "train/lr", 3, (series) => rateWords(series)],
    ["Gradient norm", "train/grad_norm", 3, () => ""],
    ["Memory", "perf/memory_gib", 3, (series) => memoryWords(series)],
    ["Busy", "perf/utilisation_percent", 3, (series) => busyWords(series)],
    ["Host memory", "perf/host_memory_gib", 3, () => "GiB"],
    ["Epoch", "train/epoch", 3, () => ""],
  ];

  function facts(series) {
    return (series.started && series.started.values.facts) || {};
  }

  function deviceKind(series) {
    return facts(series).device_kind || "cpu";
  }

  function tileLabel(label, kind, table) {
    if (label === "Memory") return kind === "cuda" ? "GPU memory" : "Host memory";
    if (label === "Busy") return kind === "cuda" ? "GPU utilization" : "CPU utilization";
    if (label === "Learning rate" && "train/lr_scheduled" in table.columns) return "Effective rate";
    return label;
  }

  function memoryWords(series) {
    const total = facts(series).memory_total_gib, peak = series.steps.last("perf/memory_peak_gib");
    const reserved = series.steps.last("perf/memory_reserved_gib");
    const words = [total ? `of ${t.number(total, 3)} GiB` : "GiB"];
    if (reserved != null) words.push(`reserved ${t.number(reserved, 3)}`);
    if (peak != null) words.push(`peak ${t.number(peak, 3)}`);
    return words.join(", ");
  }

  function busyWords(series) {
    const warmth = series.steps.last("perf/temperature_c");
    return warmth == null ? "%" : `%, ${t.number(warmth, 3)} \u00b0C`;
  }

  function rateWords(series) {
    const planned = series.steps.last("train/lr_scheduled");
    return planned == null ? "" : `scheduled ${t.number(planned, 3)}`;
  }

  function bestWords(series) {
    const known = series.validations.get("val/loss").filter((value) => value != null);
    return known.length > 1 ? `best ${t.number(Math.min(...known))}` : "";
  }

  function elapsedText(series) {
    const { status, started } = series, now = Date.now() / 1000 + series.clockSkew;
    // Until the process reports its start, count from when the run was created.
    if (!started) return status.active ? t.duration(now - status.created_at) + " so far" : "";
    const elapsed = t.duration((status.active ? now : status.updated_at) - started.time);
    if (started.step > 0) return elapsed + " since the resume";
    return status.active ? elapsed + " so far" : "took " + elapsed;
  }

  function clockText(seconds) {
    const s = Math.round(seconds);
    const minutes = Math.floor(s / 60) % 60, rest = String(s % 60).padStart(2, "0");
    const hours = Math.floor(s / 3600);
    return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
  }

  t.tiles = { TILES, deviceKind, tileLabel, elapsedText, clockText };
})();

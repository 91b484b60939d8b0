/* Shapes of what the server answers, and of what the scripts pass to each other. */

interface Window { timbre: unknown }

/** One line of the table in trainer/core/metrics.py. */
interface Metric {
  name: string; label: string; title: string; unit: string; digits: number;
  lower_is_better: boolean | null; chart: string; tile: boolean; smoothed: boolean; compared: boolean;
}

type Values = (number | null)[];
/** Calls the Gradio event of an element. */
type Trigger = (event: string, data?: object) => void;
type Child = Node | string | null | undefined;
type Attributes = Record<string, string | number | boolean | null | undefined | (() => unknown)>;
type Series = import("./charts/series.js").Series;
type Table = import("./charts/series.js").Table;

interface PageState {
  run: string | null; cursor: string; step: number; points: number; state: string; updates: number;
  active: RunStatus[]; series: Series | null; answeredAt: number; isLoggedOut: boolean; language: string;
  /** How long a button asks for confirmation before it resets. */
  confirmMs: number;
  /** What the Listen tab plays. */
  speech: { state: string; firstSoundMs: number | null };
}

/** What the poller reports: new rows (or why the run is gone), active runs, the connection, a lost login. */
interface PollEvents { rows: string; active: RunStatus[]; link: boolean; login: null }

interface RunStatus {
  name: string; state: string; symbol: string; active: boolean; step: number; total_steps: number;
  percent: number; phase: string; eta: string; reason: string; remedy: string; actions: string[];
  created_at: number; updated_at: number; steps_per_epoch: number | null;
  loss: number | null; s_per_step: number | null;
}

interface RunRow extends RunStatus {
  dataset: string; family: string; optimizer: string; optimizations: string[] | null; bf16: boolean;
  best_eval: number | null; median_s_per_step: number | null; peak_memory_gib: number | null;
}

interface Mark { kind: string; step: number; time: number; values: MarkValues }
/** What an event of a run carries; each kind has some of these. */
type MarkValues = {
  facts?: Record<string, any>;
  optimizations?: Record<string, { on: boolean; asked: boolean; detail: string }>;
  [name: string]: any;
};
interface Rows { columns: string[]; rows: Values[] }
interface RowsAnswer {
  reset: boolean; steps: Rows; validations: Rows; marks: Mark[]; cursor: string; status: RunStatus;
  active: RunStatus[]; server_time: number;
}

/* Charts */

type Span = [number, number];
/** What the horizontal axis counts. */
type Over = "step" | "time" | "epoch";
interface Look { smoothing: number; log: boolean; clip: boolean; x: Over }
interface Line {
  label: string; colour: string; dash?: number[]; kind: "line" | "faint" | "dots"; x: number[]; y: Values;
}
interface AxisMark { x: number; colour: string; strong?: boolean; words?: string }
interface Extent { x0: number; x1: number; low: number; high: number; positive: number }
interface Frame {
  x0: number; x1: number; low: number; high: number; log: boolean; width: number; height: number;
  px(x: number): number; py(y: number): number; toX(pixel: number): number;
}
interface ChartOptions { title: string; large?: boolean; log?: () => boolean; clip?: () => boolean }
interface ComparedRun { name: string; series: Series; config: object; files: string[]; isWhole: boolean }

/* Tabs */

interface TrashEntry { key: string; name: string; size_bytes: number; discarded_at: number }
interface FieldMark { field: string; words: string; tab: string }
/** The text or path in a field, whether a box is checked, or false where another value is wanted but not given. */
type FieldValue = string | boolean;
/** What fields of many entries share (webui/forms/form.py): label, help, kind, folded away, optional, choices. */
type FieldLook = [string, string, "tick" | "list" | "number" | "text", boolean, boolean, string[] | null];
interface EntryFacts { name: string; about: string; fields: [name: string, look: number, start: FieldValue][] }
interface FormFacts { looks: FieldLook[]; entries: Record<string, EntryFacts>; tells: string }
interface PresetPart {
  reset?: string[]; set?: Record<string, FieldValue>; unless?: Record<string, FieldValue>;
}
interface PresetFacts {
  plans: Record<string, PresetPart[]>; initial: Record<string, FieldValue>; bundled: string; bundledFamily: string;
  preset: string;
}
interface Take { id: string; entry: string; text: string; speaker: string }
interface Standing {
  name: string; low: number; high: number; score: number; wins: number; losses: number; draws: number;
}
interface TakesAnswer {
  takes: Take[]; votes: number; standings: Standing[];
  choices: { steps: number[]; best: number | null; has_base: boolean; sentences: { text: string; speaker: string }[] };
}
interface Cutting {
  state: string; phase: string; done: number; total: number; problem: string;
  found: { clips: number; clips_s: number; recordings_s: number; without_text: number; faults: string[] } | null;
}
interface RateFinding {
  text: string; rates: number[]; changes: Values; smooth: Values; suggestion: number | null; lost: number | null;
}
interface RateSearch {
  state: string; optimizer: string; done: number; total: number; problem: string; finding: RateFinding | null;
}
interface Trial {
  label: string; groups: string[]; state: string; reason: string; s_per_step: number; peak_gib: number | null;
  boxes: Record<string, unknown>; on: Record<string, { on: boolean; detail: string }>;
}
interface Measurement {
  file: string; made_at?: string; seconds: number; state: string; rows: Trial[];
  model: Record<string, unknown>; machine: Record<string, unknown>;
}
interface RaceRow {
  entrant: string; options: string; knob: string; value: number; loss_at_steps: number; steps: number;
  at_steps: string; loss_at_seconds: number; steps_for_seconds: number; at_seconds: string; s_per_step: number;
  optimizer_share: number | null; peak_memory_gib: number | null; diverged: number;
}
interface Race {
  name: string; state: string; done: number; total: number; steps: number | null; problem: string; files: string[];
  about: { family: string; batch_size: number; schedule: string; seeds: number[]; most_steps: number | null;
    minutes: number | null };
  running: { entrant: string; value: number; seed: number; what: string; step: number; steps: number } | null;
  entrants: { name: string; knob: string; value: number; sweep: [number, number, string][];
    runs: { clock: string; steps: number[]; seconds: number[]; losses: number[] }[] }[];
  report: { verdict: string[]; rows: RaceRow[]; caveats: string[] } | null;
}

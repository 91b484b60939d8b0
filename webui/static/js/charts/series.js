/* The metric columns of one run in the browser: new rows are appended, long columns thinned. */
import { HOST_MEMORY, TRAIN_LOSS, VAL_LOSS, isPerf, isVal } from "./metrics.js";

const MOST = 4000;  // Rows kept; chosen by hand, several per pixel of a wide chart.
const RECENT = 50;  // Rows in which the latest value is looked for; metrics are not older than that.

/** Columns of numbers with a row for each step or validation. */
export class Table {
  /** @type {Record<string, Values>} */
  columns = {};
  count = 0;

  /** @param {Rows} rows */
  append({ columns: names, rows }) {
    for (const name of names) this.columns[name] ??= new Array(this.count).fill(null);
    const missing = Object.keys(this.columns).filter((name) => !names.includes(name));
    for (const row of rows) {
      // A row may be short: for some metrics the server sends only the latest values.
      for (let i = 0; i < names.length; i++) this.columns[names[i]].push(row[i] ?? null);
      for (const name of missing) this.columns[name].push(null);
    }
    this.count += rows.length;
    if (this.count > MOST) this.thin(MOST / 2);
  }

  /** @param {string} name */
  has(name) {
    return name in this.columns;
  }

  /** @param {string} name @returns {Values} */
  get(name) {
    return this.columns[name] || [];
  }

  /** A column that has a value in every row. @param {"step" | "time"} name @returns {number[]} */
  axis(name) {
    return /** @type {number[]} */ (this.get(name));
  }

  /** @param {string} name */
  last(name) {
    const column = this.get(name);
    for (let i = column.length - 1; i >= Math.max(0, column.length - RECENT); i--) {
      if (column[i] != null) return column[i];
    }
    return null;
  }

  /** Keep the lowest and the highest loss of every bucket, the ends, and rows without a loss.
   * @param {number} most */
  thin(most) {
    const values = this.get(TRAIN_LOSS), size = this.count / (most / 2);
    const keep = new Set([0, this.count - 1]);
    for (let start = 0; start < this.count; start += size) {
      let low = -1, high = -1;
      for (let i = Math.floor(start); i < Math.min(this.count, Math.floor(start + size)); i++) {
        const value = values[i];
        if (value == null) keep.add(i);
        else {
          if (low < 0 || value < Number(values[low])) low = i;
          if (high < 0 || value > Number(values[high])) high = i;
        }
      }
      if (low >= 0) keep.add(low).add(high);
    }
    const rows = [...keep].sort((a, b) => a - b);
    for (const [name, column] of Object.entries(this.columns)) {
      this.columns[name] = rows.map((row) => column[row]);
    }
    this.count = rows.length;
  }
}

/** All that has been read of one run. */
export class Series {
  steps = new Table();
  validations = new Table();
  /** @type {Mark[]} */
  marks = [];
  cursor = "";
  /** @type {RunStatus | null} */
  status = null;
  clockSkew = 0;

  /** @param {string} run */
  constructor(run) {
    this.run = run;
  }

  /** @param {RowsAnswer} answer */
  take(answer) {
    if (answer.reset) Object.assign(this, new Series(this.run));
    this.steps.append(answer.steps);
    this.validations.append(answer.validations);
    this.marks.push(...answer.marks);
    this.cursor = answer.cursor;
    this.status = answer.status;
    this.clockSkew = answer.server_time - Date.now() / 1000;
  }

  /** The table that holds a metric. @param {string} name */
  tableOf(name) {
    return isVal(name) ? this.validations : this.steps;
  }

  /** @param {string} kind */
  markedAs(kind) {
    return this.marks.filter((mark) => mark.kind === kind);
  }

  get started() {
    return this.markedAs("started").pop() || null;
  }

  /** What the process reported at its start. */
  get facts() {
    return this.started?.values.facts || {};
  }

  get isOnGpu() {
    return this.facts.device_kind === "cuda";
  }

  /** Whether a metric is shown: not every device reports speed and memory. @param {string} name */
  shows(name) {
    if (isPerf(name) && !this.tableOf(name).has(name)) return false;
    // Without a GPU, the memory of the device is the host memory, so one of the two is enough.
    return name !== HOST_MEMORY || this.isOnGpu;
  }

  /** The lowest validation loss, where there is more than one. */
  get best() {
    const known = this.validations.get(VAL_LOSS).filter((value) => value != null);
    return known.length > 1 ? Math.min(...known) : null;
  }

  /** Where a step or time is on the horizontal axis: in steps, in seconds since the first step, or in epochs.
   * @param {Over} over @param {{ step: number, time: number }} at */
  place(over, { step, time }) {
    if (over === "step") return step;
    if (over === "epoch") return step / (this.status?.steps_per_epoch || 1);
    return time - (this.steps.axis("time")[0] || this.validations.axis("time")[0] || time);
  }

  /** The place of each row of a table on the horizontal axis. @param {Over} over @param {Table} table */
  places(over, table) {
    const steps = table.axis("step"), times = table.axis("time");
    return steps.map((step, i) => this.place(over, { step, time: times[i] }));
  }

  /** The steps of a range of the horizontal axis; null if it has none.
   * @param {Over} over @param {number[]} range */
  stepsWithin(over, [from, to]) {
    const x = this.places(over, this.steps);
    const inside = this.steps.axis("step").filter((_, i) => x[i] >= from && x[i] <= to);
    return inside.length ? [inside[0], inside[inside.length - 1]] : null;
  }
}

/** Exponential moving average, debiased so that it is not pulled towards zero at the start.
 * @param {Values} values @param {number} factor @returns {Values} */
export function smooth(values, factor) {
  let average = 0, weight = 0;
  return values.map((value) => {
    if (value == null) return null;
    average = factor * average + (1 - factor) * value;
    weight = factor * weight + (1 - factor);
    return average / weight;
  });
}

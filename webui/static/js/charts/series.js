/* The metric columns of one run in the browser: new rows are appended, long columns thinned. */
(function () {
  "use strict";
  const t = window.timbre;
  const MOST = 4000;  // Rows kept; chosen by hand, several per pixel of a wide chart.

  class Table {
    constructor() {
      this.columns = {};
      this.count = 0;
    }

    append(table) {
      const names = table.columns;
      for (const name of names) {
        if (!(name in this.columns)) this.columns[name] = new Array(this.count).fill(null);
      }
      const missing = Object.keys(this.columns).filter((name) => !names.includes(name));
      for (const row of table.rows) {
        // A row may be short: for some metrics the server sends only the latest values.
        for (let i = 0; i < names.length; i++) this.columns[names[i]].push(row[i] ?? null);
        for (const name of missing) this.columns[name].push(null);
      }
      this.count += table.rows.length;
      if (this.count > MOST) this.thin(MOST / 2);
    }

    get(name) {
      return this.columns[name] || [];
    }

    last(name) {
      const column = this.get(name);
      for (let i = column.length - 1; i >= Math.max(0, column.length - 50); i--) {
        if (column[i] != null) return column[i];
      }
      return null;
    }

    /* Keep the lowest and the highest loss of every bucket, the ends, and rows without a loss. */
    thin(most) {
      const values = this.get("train/loss");
      const size = this.count / (most / 2);
      const keep = new Set([0, this.count - 1]);
      for (let start = 0; start < this.count; start += size) {
        let low = -1, high = -1;
        for (let i = Math.floor(start); i < Math.min(this.count, Math.floor(start + size)); i++) {
          if (values[i] == null) { keep.add(i); continue; }
          if (low < 0 || values[i] < values[low]) low = i;
          if (high < 0 || values[i] > values[high]) high = i;
        }
        if (low >= 0) keep.add(low).add(high);
      }
      const rows = [...keep].sort((a, b) => a - b);
      for (const name of Object.keys(this.columns)) {
        const column = this.columns[name];
        this.columns[name] = rows.map((row) => column[row]);
      }
      this.count = rows.length;
    }
  }

  class Series {
    constructor(run) {
      this.run = run;
      this.clear();
    }

    clear() {
      this.steps = new Table();
      this.validations = new Table();
      this.marks = [];
      this.cursor = "";
      this.status = null;
      this.clockSkew = 0;
    }

    take(answer) {
      if (answer.reset) this.clear();
      this.steps.append(answer.steps);
      this.validations.append(answer.validations);
      this.marks.push(...answer.marks);
      this.cursor = answer.cursor;
      this.status = answer.status;
      this.clockSkew = answer.server_time - Date.now() / 1000;
    }

    markedAs(kind) {
      return this.marks.filter((mark) => mark.kind === kind);
    }

    get started() {
      const marks = this.markedAs("started");
      return marks.length ? marks[marks.length - 1] : null;
    }
  }

  /* Exponential moving average, debiased so that it is not pulled towards zero at the start. */
  t.smooth = function (values, factor) {
    let average = 0, weight = 0;
    return values.map((value) => {
      if (value == null) return null;
      average = factor * average + (1 - factor) * value;
      weight = factor * weight + (1 - factor);
      return average / weight;
    });
  };

  t.Table = Table;
  t.Series = Series;
})();

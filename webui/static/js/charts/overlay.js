/* Draws a second run behind the current one for comparison; reads new rows while it trains. */
(function () {
  "use strict";
  const t = window.timbre;
  const READ_MS = 3000;

  t.Overlay = class {
    constructor(redraw) {
      this.redraw = redraw;
      this.series = null;
      this.readAt = 0;
      this.picker = t.h("select", { id: "live-compare", "aria-label": "Compare with another run",
        onchange: () => this.choose(this.picker.value) }, t.h("option", { value: "" }, "none"));
      this.element = t.h("label", {}, "Compare: ", this.picker);
    }

    /* Offer all other runs; drop the chosen one if it no longer exists. */
    offer(names, shown) {
      const others = names.filter((name) => name !== shown);
      const offered = [...this.picker.options].slice(1).map((option) => option.value);
      if (offered.join("\n") !== others.join("\n")) {
        this.picker.replaceChildren(t.h("option", { value: "" }, "none"),
          ...others.map((name) => t.h("option", { value: name }, name)));
      }
      this.element.hidden = !others.length;
      if (this.series && !others.includes(this.series.run)) this.choose("");
      this.picker.value = this.series ? this.series.run : "";
    }

    choose(name) {
      this.series = name ? new t.Series(name) : null;
      this.picker.value = name;
      this.readAt = 0;
      this.redraw();
      this.readOn();
    }

    /* Read new rows every few seconds, only while that run is training. */
    async readOn() {
      const { series } = this;
      if (!series || Date.now() - this.readAt < READ_MS) return;
      if (series.status && !series.status.active) return;
      this.readAt = Date.now();
      const query = `rows?max=1000&cursor=${encodeURIComponent(series.cursor)}`;
      const answer = await t.getJson(t.runUrl(series.run, query)).catch(() => null);
      if (!answer || series !== this.series) return;
      series.take(answer);
      this.redraw();
    }

    get isReady() {
      return Boolean(this.series && this.series.status);
    }
  };
})();

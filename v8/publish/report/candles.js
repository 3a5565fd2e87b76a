// Charts of candles and forecasts that can be moved, zoomed and read, of the library `lightweight-charts`,
// which the page holds. Each is drawn from the JSON beside it, see v8/publish/report/charts.py.
(() => {
  const { CandlestickSeries, LineSeries } = globalThis.LightweightCharts;
  const { chartOptions, colours, createChart, DrawnSeries, element, fillArea, moment, price, share } = globalThis.v8Touch;

  const MOST_KEYS = 4;  // the others are folded away
  const LEAST_BODY_PX = 3;  // of a forecast candle, whose close is often its open

  // Forecasts that were issued one after another. A row is {time, lines, fills, candle, start}: values of lines,
  // [low, high] of areas, open, high, low and close; a row with `start` begins a forecast at the values there.
  class ForecastView extends DrawnSeries {
    priceValueBuilder({ lines, fills, candle }) {
      const values = [...lines, ...fills.flat(), ...(candle || [])];
      return [Math.min(...values), Math.max(...values), (candle || lines).at(-1)];
    }
    isWhitespace({ lines }) { return lines === undefined; }
    defaultOptions() { return { ...super.defaultOptions(), stroke: "gray", areas: [], dash: [], hidden: [] }; }
    draw({ context, horizontalPixelRatio: wide, verticalPixelRatio: tall }, toY) {
      const { bars, barSpacing, visibleRange } = this.data || {};
      if (!visibleRange) return;
      const { stroke, areas, dash, hidden, lineWidth } = this.options;
      const forecasts = [];
      bars.slice(Math.max(0, visibleRange.from - 1), visibleRange.to).forEach(({ x, originalData: row }) => {
        if (!forecasts.length || row.start) {
          forecasts.push([]);
          if (row.start) {
            const fills = row.fills.map((_, at) => row.start.fills[at]);
            forecasts.at(-1).push({ x: (x - barSpacing) * wide, row: { lines: row.start.lines, fills } });
          }
        }
        forecasts.at(-1).push({ x: x * wide, row });
      });
      const path = (points) => {
        context.beginPath();
        points.forEach(([x, value], at) => {
          if (at) context.lineTo(x, toY(value) * tall);
          else context.moveTo(x, toY(value) * tall);
        });
      };
      for (const points of forecasts) {
        areas.forEach((colour, at) => {
          if (hidden.includes(`area ${at}`)) return;
          const ends = points.map(({ x, row }) => [x, toY(row.fills[at][1]) * tall, toY(row.fills[at][0]) * tall]);
          fillArea(context, ends, colour);
        });
      }
      context.strokeStyle = stroke;
      for (const points of forecasts) {
        context.lineWidth = lineWidth * tall;
        context.setLineDash(dash.map((length) => length * wide));
        points[0].row.lines.forEach((_, at) => { path(points.map(({ x, row }) => [x, row.lines[at]])); context.stroke(); });
        context.setLineDash([]);
        if (!hidden.includes("candle")) points.forEach(({ x, row }) => {
          if (row.candle) this.#drawCandle(context, x, row.candle.map((value) => toY(value) * tall), barSpacing * wide, LEAST_BODY_PX * tall);
        });
      }
    }
    // As wide as an actual candle, so that it is seen as one: a body, and a wick from high to low.
    #drawCandle(context, x, [open, high, low, close], spacing, leastBody) {
      const wick = Math.max(1, Math.round(spacing / 8));
      const half = Math.max(wick, Math.floor(spacing * 0.4));
      const body = Math.max(leastBody, Math.abs(open - close));
      context.fillStyle = this.options.stroke;
      context.fillRect(Math.round(x - wick / 2), high, wick, Math.max(1, low - high));
      context.fillRect(Math.round(x) - half, (open + close - body) / 2, 2 * half, body);
    }
  }

  class CandleChart {
    constructor(place, content) {
      this.content = content;
      this.place = place;
      this.rows = content.time.map((time, at) => ({ time, at }));
      this.places = new Map(content.time.map((time, at) => [time, at]));
      this.at = content.time.length - 1;  // the bar that was read last
      this.legend = element("div", { class: "keys" });
      this.tip = element("div", { class: "touch-tip", hidden: "" });
      this.box = element("div", { class: "touch-box", tabindex: 0, role: "application", "aria-label": content.words.help });
      place.replaceChildren(this.legend, this.box);
      this.draw();
      this.box.addEventListener("keydown", (event) => this.onKey(event));
      this.box.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(event.deltaY < 0 ? 0.8 : 1.25);
      }, { passive: false });
    }

    buttons() {
      const { words } = this.content;
      const acts = [["+", words.larger, () => this.zoom(0.7)], ["−", words.smaller, () => this.zoom(1 / 0.7)],
        ["↔", words.all, () => this.chart.timeScale().fitContent()]];
      return element("div", { class: "touch-buttons" }, ...acts.map(([sign, label, act]) => {
        const button = element("button", { type: "button", title: label, "aria-label": label }, sign);
        button.addEventListener("click", act);
        return button;
      }));
    }

    price(value) { return price(value, this.content.decimals); }

    draw() {
      const paint = colours();
      const { content } = this;
      this.chart?.remove();
      // The pixels at the right leave room for half of the last time.
      const options = chartOptions(paint, { timeVisible: true, rightOffsetPixels: 24 });
      // The wheel scrolls the page; see the constructor for zooming with it.
      options.handleScroll.mouseWheel = false;
      options.handleScale = { mouseWheel: false };
      this.chart = createChart(this.box, options);
      this.keys = [];
      this.addCandles(paint);
      content.tasks.forEach((task) => this.addTask(task, paint));
      this.chart.panes().forEach((pane, at) => {
        pane.setStretchFactor(at ? 1 : 3);
        // A low pane has room for several ticks only where they are closer than usual.
        if (at) pane.priceScale("right").applyOptions({ tickMarkDensity: 1.4, scaleMargins: { top: 0.08, bottom: 0.08 } });
      });
      this.chart.timeScale().fitContent();
      this.chart.subscribeCrosshairMove(({ time }) => this.read(time));
      this.box.append(this.tip);
      this.showKeys();
    }

    add(kind, format, pane, extra) {
      const priceFormat = format === "price"
        ? { type: "custom", minMove: 10 ** -this.content.decimals, formatter: (value) => this.price(value) }
        : { type: "custom", minMove: 1e-6, formatter: share };
      const options = { priceFormat, lastValueVisible: false, priceLineVisible: false, crosshairMarkerVisible: false, ...extra };
      return typeof kind === "function" ? this.chart.addCustomSeries(new kind(), options, pane) : this.chart.addSeries(kind, options, pane);
    }

    forecastRows(rowOf) {
      return this.content.issued.flatMap((issued) => this.content.time
        .slice(issued.last + 1, issued.last + 1 + issued.candles.length)
        .map((time, step) => ({ time, ...rowOf(issued, step) })));
    }

    addCandles(paint) {
      const { content } = this;
      const { words } = content;
      const close = (at) => content.candles[at][3];
      const rows = this.forecastRows((issued, step) => {
        const row = { lines: [], fills: issued.intervals.map((ends) => ends[step]), candle: issued.candles[step] };
        const known = close(issued.last);
        if (!step) row.start = { lines: [], fills: issued.intervals.map(() => [known, known]) };
        return row;
      });
      this.forecasts = new Map(rows.map((row) => [row.time, row]));
      const areas = content.intervals.map((_, at) => paint(at ? "fan_inner" : "fan"));
      const ahead = this.add(ForecastView, "price", 0, { stroke: paint("blue"), areas });
      ahead.setData(rows);
      const actual = this.add(CandlestickSeries, "price", 0, { upColor: paint("gain"), downColor: paint("loss"),
        wickUpColor: paint("gain"), wickDownColor: paint("loss"), borderVisible: false });
      actual.setData(content.time.map((time, at) => {
        const [open, high, low, last] = content.candles[at];
        return { time, open, high, low, close: last };
      }));
      this.actual = actual;
      const four = (values) => values.map((value, place) => `${"OHLC"[place]} ${this.price(value)}`).join(" ");
      const two = ([low, high]) => `${this.price(low)} – ${this.price(high)}`;
      this.keys.push({ name: words.actual, title: words.four, sign: ["box", paint("gain")], rank: 0, series: actual, value: (at) => four(content.candles[at]) });
      this.keys.push({ name: words.forecast, title: words.four, sign: ["box", paint("blue")], rank: 0, series: ahead, part: "candle", value: (at, row) => row && four(row.candle) });
      content.intervals.forEach((name, place) => this.keys.push({ name, sign: ["box", areas[place]], rank: place ? 4 : 2, series: ahead, part: `area ${place}`,
        value: (at, row) => row && two(row.fills[place]) }));
    }

    addTask(task, paint) {
      const { content } = this;
      const pane = task.format === "price" ? 0 : 1;
      // A task has its colour of the cards and dots, so that its intervals are not taken for those of the close.
      const colour = paint(task.colour);
      const knownColour = paint(pane ? "other" : task.colour);
      const write = (value) => (task.format === "price" ? this.price(value) : share(value));
      const all = (values) => [...values].reverse().map(write).join(" – ");
      const rows = this.forecastRows((issued, step) => {
        const of = issued.tasks[task.place];
        const row = { lines: of.lines.map((line) => line[step]), fills: of.fills.map((ends) => ends[step]) };
        const known = task.known.map((line) => line[issued.last]);
        if (!step) row.start = { lines: known, fills: of.fills.map(() => [known[0], known[0]]) };
        return row;
      });
      const byTime = new Map(rows.map((row) => [row.time, row]));
      const areas = rows.length ? rows[0].fills.map((_, at) => paint(at ? "fan_of_task_inner" : "fan_of_task")) : [];
      const ahead = this.add(ForecastView, task.format, pane, { stroke: colour, areas, dash: pane ? [] : [4, 3], lineWidth: pane ? 2 : 1.5 });
      ahead.setData(rows);
      const known = task.known.map((line) => {
        const series = this.add(LineSeries, task.format, pane, { color: knownColour, lineWidth: 1 });
        series.setData(content.time.map((time, at) => ({ time, value: line[at] })));
        return series;
      });
      this.keys.push({ name: task.actual, sign: ["line", knownColour], rank: 4, many: known, value: (at) => all(task.known.map((line) => line[at])) });
      this.keys.push({ name: task.forecast, sign: [pane ? "line" : "dash", colour], rank: pane ? 1 : 3, series: ahead, value: (at) => {
        const row = byTime.get(content.time[at]);
        return row && all(row.lines);
      } });
      areas.forEach((area, place) => this.keys.push({ name: task.intervals[place], sign: ["box", area], rank: 4, series: ahead, part: `area ${place}`, value: (at) => {
        const row = byTime.get(content.time[at]);
        return row && row.fills[place].map(write).join(" – ");
      } }));
    }

    // What a reader needs first stands above the chart, the rest in a fold below it.
    showKeys() {
      const first = [...this.keys].sort((a, b) => a.rank - b.rank).slice(0, MOST_KEYS);
      const buttons = this.keys.map((key) => {
        const button = element("button", { type: "button", class: "key", "aria-pressed": "true", title: key.title || this.content.words.hide }, this.sign(key), key.name);
        button.addEventListener("click", () => this.toggle(key, button));
        return button;
      });
      const isFirst = (_, at) => first.includes(this.keys[at]);
      const others = buttons.filter((button, at) => !isFirst(button, at));
      const parts = [element("span", { class: "key-list" }, ...buttons.filter(isFirst)), this.buttons()];
      if (others.length) {
        parts.push(element("details", {}, element("summary", {}, this.content.words.more), element("span", { class: "key-list" }, ...others)));
      }
      this.legend.replaceChildren(...parts);
    }

    sign(key) {
      const [form, colour] = key.sign;
      const sign = element("i", { class: `sign ${form}` });
      sign.style.setProperty("--sign", colour);
      return sign;
    }

    toggle(key, button) {
      const isShown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", isShown);
      if (key.part) {
        const hidden = key.series.options().hidden.filter((part) => part !== key.part);
        key.series.applyOptions({ hidden: isShown ? hidden : [...hidden, key.part] });
      } else (key.many || [key.series]).forEach((series) => series.applyOptions({ visible: isShown }));
    }

    // Shows the values of the bar under the crosshair, on the other half of the chart; without one nothing.
    read(time) {
      const at = this.places.get(time);
      this.tip.hidden = at === undefined;
      if (at === undefined) return;
      this.at = at;
      const row = this.forecasts.get(this.content.time[at]);
      const lines = this.keys.map((key) => [key, key.value(at, row)]).filter(([, value]) => value);
      this.tip.replaceChildren(element("b", {}, moment(this.content.time[at])),
        ...lines.map(([key, value]) => element("span", {}, this.sign(key), key.name, element("b", {}, value))));
      const scale = this.chart.timeScale();
      this.tip.classList.toggle("right", scale.timeToCoordinate(time) < scale.width() / 2);
    }

    point(at) {
      const last = this.content.time.length - 1;
      const place = Math.min(last, Math.max(0, at));
      this.chart.setCrosshairPosition(this.content.candles[place][3], this.content.time[place], this.actual);
      this.read(this.content.time[place]);
    }

    zoom(factor) {
      const scale = this.chart.timeScale();
      const range = scale.getVisibleLogicalRange();
      if (!range) return;
      const half = Math.max(3, ((range.to - range.from) * factor) / 2);
      const middle = (range.from + range.to) / 2;
      scale.setVisibleLogicalRange({ from: middle - half, to: middle + half });
      this.box.dataset.bars = Math.round(2 * half);
    }

    onKey(event) {
      const acts = { ArrowLeft: () => this.point(this.at - 1), ArrowRight: () => this.point(this.at + 1),
        Home: () => this.point(0), End: () => this.point(this.content.time.length - 1),
        "+": () => this.zoom(0.7), "-": () => this.zoom(1 / 0.7), 0: () => this.chart.timeScale().fitContent() };
      const act = acts[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    }
  }

  const drawn = [];
  globalThis.v8Candles = (figure) => {
    const chosen = figure.querySelector("select");
    const place = figure.querySelector(".touch");
    const start = (script) => {
      const before = drawn.find((chart) => chart.place === place);
      before?.chart.remove();
      if (before) drawn.splice(drawn.indexOf(before), 1);
      drawn.push(new CandleChart(place, JSON.parse(script.textContent)));
    };
    start(figure.querySelector("script"));
    chosen?.addEventListener("change", () => {
      const section = document.getElementById(chosen.value);
      start(section.querySelector(".candles script"));
    });
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((chart) => chart.draw()));
})();

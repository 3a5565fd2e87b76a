// Charts that can be moved, zoomed and read, of the library that the page loads before this script: the chart
// of a series from /api/chart, and coverage by day from the table of the live record.
import { onPart, present } from "/page.js";

const { CandlestickSeries, LineSeries } = window.LightweightCharts;
const { chartOptions, colours, createChart, DrawnSeries, element, fillArea, moment, price, share } = window.v8Touch;
const root = document.documentElement;
const DASHED = 2;
const LONG_DASHES = 3;  // dashes of a thin line, which would look dotted
const DAY_S = 86400;

const seconds = (text) => Date.parse(text) / 1000;

// An area between two lines. Rows are {time, low, high}; `isFirst` begins another area.
class BandView extends DrawnSeries {
  priceValueBuilder({ low, high }) { return [low, high, high]; }
  isWhitespace({ low, high }) { return low === undefined || high === undefined; }
  draw({ context, horizontalPixelRatio: wide, verticalPixelRatio: tall }, toY) {
    if (!this.data?.visibleRange) return;
    const { from, to } = this.data.visibleRange;
    const areas = [];
    this.data.bars.slice(from, to).forEach(({ x, originalData: row }) => {
      if (!areas.length || row.isFirst) areas.push([]);
      areas.at(-1).push([x * wide, toY(row.high) * tall, toY(row.low) * tall]);
    });
    areas.forEach((area) => fillArea(context, area, this.options.colour));
  }
}

// A dotted frame around all rows {time, low, high}, which have equal ends, from the middle of the first bar to the
// right edge of the last one. It has no filling, so that nobody takes it for an interval of the close.
class FrameView extends BandView {
  draw({ context, horizontalPixelRatio: wide, verticalPixelRatio: tall }, toY) {
    const { bars, barSpacing, visibleRange } = this.data || {};
    if (!visibleRange || visibleRange.from >= visibleRange.to) return;
    const first = bars[visibleRange.from];
    const last = bars[visibleRange.to - 1];
    const middle = (position) => Math.round(position) + 0.5;  // of a pixel, where a thin line is sharp
    const left = middle(first.x * wide);
    const right = middle((last.x + barSpacing / 2) * wide);
    const top = middle(toY(first.originalData.high) * tall);
    const bottom = middle(toY(first.originalData.low) * tall);
    const lines = [[[left, top], [right, top]], [[left, bottom], [right, bottom]]];
    if (visibleRange.from === 0) lines.push([[left, top], [left, bottom]]);
    if (visibleRange.to === bars.length) lines.push([[right, top], [right, bottom]]);
    context.strokeStyle = this.options.colour;
    context.lineWidth = Math.max(1, Math.floor(tall));
    context.setLineDash([2 * wide, 3 * wide]);
    context.beginPath();
    lines.forEach(([start, end]) => { context.moveTo(...start); context.lineTo(...end); });
    context.stroke();
    context.setLineDash([]);
  }
}

const options = (paint, isDaily) => chartOptions(paint, { timeVisible: !isDaily, rightOffset: 1 });

// The chart of a series. It is made once and moved into every part of the page that is shown.
class SeriesChart {
  constructor(place) {
    this.words = JSON.parse(place.dataset.words);
    this.decimals = Number(place.dataset.decimals);
    const title = document.querySelector("h1").textContent;
    this.box = element("div", { class: "chart-box", tabindex: 0, role: "application", "aria-label": title });
    this.legend = element("p", { class: "chart-legend", "aria-live": "polite" });
    this.node = element("div", { class: "chart-frame" }, this.legend, this.box, this.buttons());
    place.prepend(this.node);
    this.chart = createChart(this.box, options(colours(), false));
    this.addSeries();
    this.paint();
    this.chart.subscribeCrosshairMove(({ time }) => this.read(time === undefined ? undefined : time));
    this.chart.timeScale().subscribeVisibleLogicalRangeChange((range) => {
      if (range) this.box.dataset.bars = Math.round(range.to - range.from);
    });
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
  }

  buttons() {
    const acts = { larger: () => this.zoom(0.7), smaller: () => this.zoom(1 / 0.7), newest: () => this.showNewest() };
    const signs = { larger: "+", smaller: "−", newest: this.words.newest };
    return element("div", { class: "chart-buttons" }, ...Object.entries(acts).map(([name, act]) => {
      const button = element("button", { type: "button", title: this.words[name], "aria-label": this.words[name] }, signs[name]);
      button.addEventListener("click", act);
      return button;
    }));
  }

  addSeries() {
    const priceFormat = {
      type: "custom", minMove: 10 ** -this.decimals, formatter: (value) => this.price(value) };
    const shareFormat = { type: "custom", minMove: 0.00001, formatter: share };
    const quiet = { lastValueVisible: false, priceLineVisible: false, crosshairMarkerVisible: false };
    const add = (kind, pane, extra = {}) => this.chart.addSeries(
      kind, { ...quiet, priceFormat: pane ? shareFormat : priceFormat, ...extra }, pane);
    const custom = (view, pane) => this.chart.addCustomSeries(view, { ...quiet, priceFormat: pane ? shareFormat : priceFormat }, pane);
    const band = (pane) => custom(new BandView(), pane);
    this.series = {
      past_band: band(0), wide: band(0), narrow: band(0), range: custom(new FrameView(), 0),
      upper: add(LineSeries, 0, { lineWidth: 1 }), lower: add(LineSeries, 0, { lineWidth: 1 }),
      upper_ahead: add(LineSeries, 0, { lineWidth: 1, lineStyle: LONG_DASHES }),
      lower_ahead: add(LineSeries, 0, { lineWidth: 1, lineStyle: LONG_DASHES }),
      candles: add(CandlestickSeries, 0, { lastValueVisible: true, priceLineVisible: true }),
      ahead: add(CandlestickSeries, 0),
      past: add(LineSeries, 0, { lineWidth: 2 }),
      volatility_band: band(1),
      volatility: add(LineSeries, 1, { lineWidth: 2 }),
      volatility_ahead: add(LineSeries, 1, { lineWidth: 2, lineStyle: DASHED }),
    };
    this.chart.panes()[0].setStretchFactor(3);
    this.chart.panes()[1].setStretchFactor(1);
  }

  paint() {
    const paint = colours();
    this.chart.applyOptions(options(paint, this.data?.bar_s >= DAY_S));
    const candle = (up, down) => ({
      upColor: up, downColor: down, wickUpColor: up, wickDownColor: down, borderVisible: false });
    // Forecast candles lie on shaded areas: one colour for all, the rising ones filled.
    const ahead = {
      ...candle(paint("candle-ahead"), paint("card")), wickDownColor: paint("candle-ahead"),
      borderVisible: true, borderUpColor: paint("candle-ahead"), borderDownColor: paint("candle-ahead") };
    const line = (color) => ({ color });
    const styles = {
      past_band: { colour: paint("past") }, wide: { colour: paint("fan") }, narrow: { colour: paint("fan_inner") },
      range: { colour: paint("ink") },
      upper: line(paint("purple")), lower: line(paint("purple")), upper_ahead: line(paint("purple")),
      lower_ahead: line(paint("purple")), candles: candle(paint("gain"), paint("loss")), ahead,
      past: line(paint("orange")), volatility_band: { colour: paint("fan_of_task") }, volatility: line(paint("other")),
      volatility_ahead: line(paint("volatility")),
    };
    Object.entries(styles).forEach(([name, style]) => this.series[name].applyOptions(style));
    if (this.data) this.drawPast();
  }

  price(value) { return price(value, this.decimals); }

  /** Show a chart's data; the first time the newest bars, later what is being looked at. */
  show(data) {
    const isFirst = !this.data;
    this.data = data;
    const { columns, forecast } = data;
    this.times = data.open_times.map(seconds);
    this.timesAhead = data.forecast_open_times.map(seconds);
    const last = this.times.length - 1;
    const rows = (times, values) => times.flatMap((time, at) =>
      (values?.[at] === null || values?.[at] === undefined ? [] : [{ time, value: values[at] }]));
    const candles = (times, { open, high, low, close }) => times.map((time, at) => ({
      time, open: (open || close)[at], high: high[at], low: low[at], close: close[at] }));
    const continued = (known, ahead) => (ahead ? [...rows([this.times[last]], [columns[known][last]]), ...rows(this.timesAhead, ahead)] : []);
    const band = (name, ends) => {
      const start = columns[name][last];
      const begin = start === null ? [] : [{ time: this.times[last], low: start, high: start }];
      return ends ? [...begin, ...this.timesAhead.map((time, at) => ({ time, low: forecast[ends[0]][at], high: forecast[ends[1]][at] }))] : [];
    };
    const [wide, ...inner] = data.intervals.map((interval) => interval.columns);
    const content = {
      wide: band("close", wide?.close), narrow: band("close", inner.at(-1)?.close),
      range: data.range ? [this.times[last], ...this.timesAhead].map((time) => ({ time, ...data.range })) : [],
      upper: rows(this.times, columns.bb_upper), lower: rows(this.times, columns.bb_lower),
      upper_ahead: continued("bb_upper", forecast.bb_upper), lower_ahead: continued("bb_lower", forecast.bb_lower),
      candles: candles(this.times, columns), ahead: candles(this.timesAhead, forecast),
      volatility: rows(this.times, columns.volatility), volatility_band: band("volatility", wide?.volatility),
      volatility_ahead: continued("volatility", forecast.volatility),
    };
    Object.entries(content).forEach(([name, values]) => this.series[name].setData(values));
    this.pastAt = new Map(data.past.flatMap(({ issued_for: issuedFor, close }) =>
      close.map((value, at) => [seconds(issuedFor) + at * data.bar_s, value])));
    this.paint();
    if (isFirst) this.showNewest();
    this.read();
  }

  // A line of one series has no gaps: the step from one earlier forecast to the next one is transparent.
  drawPast() {
    const { past, bar_s: step } = this.data;
    const colour = colours()("orange");
    this.series.past.setData(past.flatMap(({ issued_for: issuedFor, close }) => close.map((value, at) => ({
      time: seconds(issuedFor) + at * step, value, color: at < close.length - 1 ? colour : "transparent" }))));
    this.series.past_band.setData(past.flatMap(({ issued_for: issuedFor, low, high }) => (low || []).map((value, at) => ({
      time: seconds(issuedFor) + at * step, low: value, high: high[at], isFirst: at === 0 }))));
  }

  get allTimes() { return [...this.times, ...this.timesAhead]; }

  showNewest() {
    const end = this.times.length + this.timesAhead.length;
    // On a phone the forecast takes a third of the width.
    const [least, multiple] = this.box.clientWidth > 600 ? [60, 6] : [30, 3];
    const num = Math.min(end, Math.max(least, multiple * this.timesAhead.length));
    this.chart.timeScale().setVisibleLogicalRange({ from: end - num, to: end });
  }

  zoom(factor) {
    const range = this.chart.timeScale().getVisibleLogicalRange();
    if (!range) return;
    const width = Math.min(Math.max((range.to - range.from) * factor, 8), this.allTimes.length + 20);
    const end = Math.min(range.to, this.allTimes.length + 1);
    this.chart.timeScale().setVisibleLogicalRange({ from: end - width, to: end });
  }

  /** Move the crosshair by bars, and the chart with it. */
  move(step) {
    const times = this.allTimes;
    const start = this.at === undefined ? this.times.length - 1 : this.at;
    const at = Math.min(Math.max(start + step, 0), times.length - 1);
    const range = this.chart.timeScale().getVisibleLogicalRange();
    const shift = Math.min(0, at - range.from) + Math.max(0, at + 1 - range.to);
    if (shift) this.chart.timeScale().setVisibleLogicalRange({ from: range.from + shift, to: range.to + shift });
    const isAhead = at >= this.times.length;
    const close = isAhead ? this.data.forecast.close[at - this.times.length] : this.data.columns.close[at];
    this.chart.setCrosshairPosition(close, times[at], isAhead ? this.series.ahead : this.series.candles);
    this.read(times[at]);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = {
      ArrowLeft: () => this.move(event.shiftKey ? -10 : -1), ArrowRight: () => this.move(event.shiftKey ? 10 : 1),
      "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1 / 0.7),
      Home: () => this.showNewest(), End: () => this.showNewest(),
      Escape: () => { this.chart.clearCrosshairPosition(); this.read(); },
    };
    if (!this.data || !acts[event.key]) return;
    acts[event.key]();
    event.preventDefault();
    event.stopPropagation();
  }

  /** Write the values of a bar into the legend, of the newest known one without a time. */
  read(time) {
    if (!this.data) return;
    const at = time === undefined ? -1 : this.allTimes.indexOf(time);
    this.at = at < 0 ? undefined : at;
    const bar = at < 0 ? this.times.length - 1 : at;
    const isAhead = bar >= this.times.length;
    const place = isAhead ? bar - this.times.length : bar;
    const columns = isAhead ? this.data.forecast : this.data.columns;
    const value = (name, form) => {
      const number = columns[name]?.[place];
      return number === null || number === undefined ? undefined : form.call(this, number);
    };
    const between = ([low, high], form) => `${value(low, form)} – ${value(high, form)}`;
    const items = ["open", "high", "low", "close"].map((name) => [name, this.words[name], value(name, this.price)]);
    if (isAhead) {
      for (const { name, columns: ends } of this.data.intervals) {
        if (ends.close) items.push(["blue", this.words.interval.replace("{name}", name), between(ends.close, this.price)]);
      }
    }
    if (value("bb_lower", this.price)) items.push(["bands", this.words.bands, between(["bb_lower", "bb_upper"], this.price)]);
    items.push(["volatility", this.words.volatility, value("volatility", share)]);
    const { range } = this.data;
    if (range) items.push(["range", this.words.range, `${this.price(range.low)} – ${this.price(range.high)}`]);
    const past = this.pastAt.get(this.allTimes[bar]);
    if (past !== undefined) items.push(["past", this.words.past, this.price(past)]);
    const opens = moment(this.allTimes[bar]);
    this.legend.replaceChildren(
      element("b", {}, isAhead ? `${opens} ${this.words.forecast}` : opens),
      ...items.filter(([, , text]) => text !== undefined).map(([name, title, text]) =>
        element("span", { class: name }, `${title} `, element("b", {}, text))));
  }
}

let chart;
const showChart = async () => {
  const place = present.querySelector(".chart-place");
  if (!place) return;
  place.hidden = false;
  if (chart) place.prepend(chart.node);
  else chart = new SeriesChart(place);
  let data;
  try {
    const answer = await fetch(place.dataset.chart, { cache: "no-store" });
    if (answer.ok) data = await answer.json();
  } catch { /* the server cannot be reached; what is drawn stays */ }
  if (data) chart.show(data);
  else if (!chart.data) chart.legend.textContent = chart.words.failed;
  root.dataset.charts = Number(root.dataset.charts || 0) + 1;
};

// Coverage by day, from the tables of the record: a line for each interval and one at its nominal share.
let coverages = [];
const showCoverage = () => {
  coverages.forEach((each) => each.remove());
  coverages = [...present.querySelectorAll(".coverage-place")].map(drawCoverage);
  const notice = present.querySelector(".coverage-notice");
  if (notice && coverages.length) notice.hidden = false;
  if (coverages.length) root.dataset.charts = Number(root.dataset.charts || 0) + 1;
};
const drawCoverage = (place) => {
  const table = place.parentElement.querySelector("table.coverage");
  place.hidden = false;
  place.replaceChildren();
  const box = element("div", { class: "chart-box low", role: "img", "aria-label": table.caption.textContent });
  const legend = element("p", { class: "chart-legend" }, table.caption.textContent);
  place.prepend(legend, box);
  const paint = colours();
  const coverage = createChart(box, options(paint, true));
  const lines = [paint("blue"), paint("orange"), paint("purple")];
  table.querySelectorAll("[data-nominal]").forEach((title, at) => {
    const color = lines[at % lines.length];
    const line = coverage.addSeries(LineSeries, {
      color, lineWidth: 2, pointMarkersVisible: true, priceLineVisible: false, lastValueVisible: false,
      priceFormat: { type: "custom", minMove: 0.001, formatter: (share) => `${(100 * share).toFixed(1)} %` } });
    const name = element("b", {}, title.textContent);
    name.style.color = color;
    legend.append(name);
    const rows = [...table.tBodies[0].rows].reverse().map((row) => [row.cells[0], row.cells[1 + at]]);
    line.setData(rows.filter(([, cell]) => cell.dataset.value).map(([day, cell]) => ({
      time: Number(day.dataset.time), value: Number(cell.dataset.value) })));
    line.createPriceLine({
      price: parseFloat(title.dataset.nominal) / 100, color, lineWidth: 1, lineStyle: DASHED, axisLabelVisible: false });
  });
  coverage.timeScale().fitContent();
  return coverage;
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showCoverage);
onPart(() => { showChart(); showCoverage(); });

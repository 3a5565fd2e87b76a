// What the charts of the report (candles.js) and those of the app (v8/annexes/live/app/chart.js) share. It is a plain script
// after the library `lightweight-charts`, because a report is one file, which can import nothing.
globalThis.v8Touch = (() => {
  const { createChart: makeChart, customSeriesDefaultOptions } = globalThis.LightweightCharts;
  const root = document.documentElement;
  const HALF_LABEL_PX = 20;  // of a time such as 12:00, the longest label, in a wide font

  /** Return a function from the name of a colour to that colour, light or dark. */
  const colours = () => {
    const style = getComputedStyle(root);
    return (name) => style.getPropertyValue(`--${name}`).trim();
  };

  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    made.append(...children);
    return made;
  };

  const price = (value, decimals) => {
    const [whole, ...others] = value.toFixed(decimals).split(".");
    return [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...others].join(".");
  };
  const share = (value) => `${(100 * value).toFixed(3)} %`;
  const moment = (seconds) => new Date(1000 * seconds).toISOString().slice(0, 16).replace("T", " ");

  const chartOptions = (paint, timeScale) => ({
    autoSize: true,
    layout: {
      background: { type: "solid", color: "transparent" }, textColor: paint("soft"), fontFamily: "system-ui, sans-serif",
      attributionLogo: false,  // the page has notice and link; the logo needs a style of its own
      panes: { separatorColor: paint("rule"), separatorHoverColor: paint("rule") },
    },
    grid: { vertLines: { color: paint("rule") }, horzLines: { color: paint("rule") } },
    rightPriceScale: { borderColor: paint("rule"), entireTextOnly: true },
    timeScale: { borderColor: paint("rule"), secondsVisible: false, ...timeScale },
    crosshair: { mode: 0, vertLine: { labelBackgroundColor: paint("soft") }, horzLine: { labelBackgroundColor: paint("soft") } },
    handleScroll: { vertTouchDrag: false },
    localization: { locale: root.lang },
  });

  /** Make a chart that leaves out a label of the time axis which its left or right edge would cut. */
  const createChart = (box, options) => {
    const chart = makeChart(box, options);
    const scale = chart.timeScale();
    const tickMarkFormatter = (time) => {
      const x = scale.timeToCoordinate(time);
      const isWhole = x === null || (x >= HALF_LABEL_PX && x <= scale.width() - HALF_LABEL_PX);
      return isWhole ? null : "";  // without an answer the library writes the label itself
    };
    // It keeps the labels that it has written until options are applied, so those are written again after each move.
    const apply = () => scale.applyOptions({ tickMarkFormatter });
    apply();
    scale.subscribeVisibleLogicalRangeChange(apply);
    scale.subscribeSizeChange(apply);
    return chart;
  };

  // A series that its method `draw` draws: `data` has the bars, see the "custom series" of the library.
  class DrawnSeries {
    defaultOptions() { return { ...customSeriesDefaultOptions }; }
    update(data, options) { this.data = data; this.options = options; }
    renderer() { return { draw: (target, toY) => target.useBitmapCoordinateSpace((space) => this.draw(space, toY)) }; }
  }

  /** Fill the area between two lines; points are [x, upper, lower] in pixels. */
  const fillArea = (context, points, colour) => {
    context.beginPath();
    points.forEach(([x, upper], at) => (at ? context.lineTo(x, upper) : context.moveTo(x, upper)));
    [...points].reverse().forEach(([x, , lower]) => context.lineTo(x, lower));
    context.closePath();
    context.fillStyle = colour;
    context.fill();
  };

  return { chartOptions, colours, createChart, DrawnSeries, element, fillArea, moment, price, share };
})();

// uPlot in the page's colours: two lines over time, and the distribution of a value with a threshold on it.

const uPlot = () => window.uPlot;

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  return { ink: of("soft"), line: of("line"), series: ["one", "two", "three"].map(of), accent: of("bad") };
}

function axis(palette, more = {}) {
  return { stroke: palette.ink, grid: { stroke: palette.line, width: 1 }, ticks: { stroke: palette.line }, ...more };
}

function hour(seconds) {
  return new Date(seconds * 1000).toTimeString().slice(0, 8);
}

// A chart that is made anew when the colour scheme changes, and follows the width of its place.
class Chart {
  constructor(place, label, height, options) {
    Object.assign(this, { place, height, options, data: null, plot: null });
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", label);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.remake());
    new ResizeObserver(() => this.fit()).observe(place);
  }

  show(data, said) {
    this.data = data;
    this.place.setAttribute("aria-label", said);
    if (this.plot) this.plot.setData(data);
    else this.remake();
  }

  fit() {
    const width = this.place.clientWidth;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
    else if (!this.plot) this.remake();
  }

  remake() {
    const width = this.place.clientWidth;
    if (!this.data || width === 0) return;
    this.plot?.destroy();
    const size = { width, height: this.height };
    this.plot = new (uPlot())({ ...size, ...this.options(colours()) }, this.data, this.place);
    this.made?.(this.plot);
  }
}

export class Lines extends Chart {
  constructor(place, label, names) {
    super(place, label, 170, (palette) => ({
      cursor: { drag: { x: false, y: false } },
      legend: { live: false },
      series: [
        {},
        ...names.map((name, number) => ({
          label: name,
          stroke: palette.series[number],
          width: 1.5,
          dash: number === 0 ? [] : number === 1 ? [6, 3] : [2, 2],
          points: { show: false },
          spanGaps: false,
        })),
      ],
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [axis(palette, { values: (_, at) => at.map(hour), space: 70 }), axis(palette, { size: 56 })],
    }));
  }
}

// `moved(value)` is called while somebody drags over the plot.
export class Distribution extends Chart {
  constructor(place, label, moved) {
    super(place, label, 150, (palette) => ({
      cursor: { show: false },
      legend: { show: false },
      scales: { x: { time: false, range: () => this.bounds }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      series: [{}, { stroke: palette.series[0], fill: `${palette.series[0]}55`, paths: uPlot().paths.bars({ size: [1, 60], align: 1 }), points: { show: false } }],
      axes: [axis(palette), axis(palette, { size: 56 })],
      hooks: { draw: [(plot) => this.mark(plot, palette)] },
    }));
    this.bounds = [0, 1];
    this.threshold = null;
    this.moved = moved;
  }

  at(threshold) {
    this.threshold = threshold;
    this.plot?.redraw(false);
  }

  mark(plot, palette) {
    if (this.threshold === null) return;
    const x = plot.valToPos(this.threshold, "x", true);
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = palette.accent;
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }

  made(plot) {
    const to = (event) => {
      const left = event.clientX - plot.over.getBoundingClientRect().left;
      const value = plot.posToVal(left, "x");
      this.moved(Math.min(this.bounds[1], Math.max(this.bounds[0], value)));
    };
    plot.over.addEventListener("pointerdown", (event) => {
      plot.over.setPointerCapture(event.pointerId);
      to(event);
    });
    plot.over.addEventListener("pointermove", (event) => {
      if (plot.over.hasPointerCapture(event.pointerId)) to(event);
    });
  }
}

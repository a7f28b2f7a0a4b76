// The plot: uPlot draws axes, grid, crosshair and the drag; curves are paths of their own x each.
import { duration, nearest, shown } from "./series.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const FONT = '12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

/** Least and greatest of the y that lie within the range of x; positive ones only where `log`. */
function extent(lines, range, log) {
  let low = Infinity, high = -Infinity;
  for (const { x, y } of lines) {
    for (let i = 0; i < x.length; i++) {
      if ((range && (x[i] < range[0] || x[i] > range[1])) || (log && !(y[i] > 0))) continue;
      if (y[i] < low) low = y[i];
      if (y[i] > high) high = y[i];
    }
  }
  return [low, high];
}

export class Plot {
  /** @param handlers zoom([first, last] or null), near(index of the curve under the pointer, -1 of none) */
  constructor(element, tip, reading, handlers) {
    Object.assign(this, { element, tip, reading, handlers, drawn: [], options: {}, u: null, near: -1, marked: -1, nothing: true });
    element.addEventListener("keydown", (event) => this.#key(event));
    element.addEventListener("blur", () => this.#point(-1));
  }

  /** Draw curves: [{colour, label, lines: [{x, y, width, alpha, dash, mark}], curve}]. */
  draw(drawn, options) {
    const same = JSON.stringify([options.log, options.x, options.xLabel, drawn.map((one) => [one.colour, one.lines.map((l) => [l.width, l.alpha, l.dash])]), css("--text")]);
    this.drawn = drawn;
    this.options = options;
    this.#limits();
    const data = [null, ...drawn.flatMap((one) => one.lines.map((line) => [line.x, line.y]))];
    if (this.u && same === this.same) {
      this.u.setData(data);
      return;
    }
    this.same = same;
    this.u?.destroy();
    this.u = null;
    this.near = this.marked = -1;
    this.tip.hidden = true;
    if (!drawn.length) return;
    this.u = new uPlot(this.#uplotOptions(), data, this.element);
    this.u.over.addEventListener("dblclick", () => this.handlers.zoom(null));
    this.u.over.addEventListener("mouseleave", () => this.#point(-1));
  }

  /** Fit the element. */
  resize() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (this.u && width && height) this.u.setSize({ width, height });
  }

  /** Let one curve stand out; -1: none. */
  highlight(index) {
    if (index === this.marked || !this.u) return;
    this.marked = index;
    this.u.redraw(false);
  }

  #limits() {
    const { range, log } = this.options;
    const lines = this.drawn.flatMap((one) => one.lines);
    const [first, last] = range ?? extent(lines.map(({ x }) => ({ x, y: x })), null, false);
    let [low, high] = extent(lines, range, log);
    this.nothing = !(low <= high);
    if (this.nothing) [low, high] = log ? [0.1, 1] : [0, 1];
    const pad = log ? 0 : (high - low || Math.abs(high) || 1) * 0.05;
    this.limits = {
      x: first < last ? [first, last] : [(first || 0) - 1, (first || 0) + 1],
      y: log ? (high > low ? [low / 1.1, high * 1.1] : [low / 10, high * 10]) : [low - pad, high + pad],
    };
  }

  #uplotOptions() {
    const { x, log, xLabel } = this.options;
    const axis = { stroke: css("--soft"), font: FONT, labelFont: FONT, grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 } };
    const values = x === "elapsed" ? (_, splits) => splits.map((v) => (v < 0 ? "" : duration(v))) : x === "step" ? (_, splits) => splits.map((v) => (Number.isInteger(v) ? v.toLocaleString() : shown(v))) : undefined;
    return {
      mode: 2,
      width: this.element.clientWidth,
      height: this.element.clientHeight,
      legend: { show: false },
      padding: [12, 18, 0, 0],
      scales: {
        x: { time: x === "time", auto: true, range: () => this.limits.x },
        y: { distr: log ? 3 : 1, auto: true, range: () => this.limits.y },
      },
      axes: [
        { ...axis, scale: "x", label: xLabel || undefined, labelSize: 20, labelGap: 0, size: 34, space: 70, ...(values ? { values } : {}) },
        { ...axis, scale: "y", size: 66, values: (_, splits) => splits.map((v) => (v == null ? "" : shown(v))) },
      ],
      series: [{}, ...this.drawn.flatMap((one, index) => one.lines.map((line) => this.#series(one, line, index)))],
      cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false }, dataIdx: () => null, bind: { dblclick: () => () => null } },
      hooks: {
        setCursor: [(u) => this.#hover(u)],
        setSelect: [(u) => this.#selected(u)],
        draw: [(u) => this.#marks(u)],
      },
    };
  }

  #series(one, line, index) {
    return {
      label: one.label,
      stroke: () => one.colour,
      width: line.width,
      dash: line.dash,
      facets: [{ scale: "x", auto: true }, { scale: "y", auto: true }],
      points: { show: false },
      paths: (u, seriesIndex) => this.#path(u, seriesIndex, () => {
        const stands = this.marked < 0 ? this.near : this.marked;
        return line.alpha * (stands < 0 || stands === index ? 1 : 0.25);
      }),
    };
  }

  /** The line, drawn here so that it can be faint; uPlot is given nothing to stroke. */
  #path(u, seriesIndex, alpha) {
    const [xs, ys] = u.data[seriesIndex];
    const { ctx, bbox } = u, series = u.series[seriesIndex], log = this.options.log;
    const ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.beginPath();
    let down = false;
    for (let i = 0; i < xs.length; i++) {
      if (log && !(ys[i] > 0)) { down = false; continue; }
      const x = u.valToPos(xs[i], "x", true), y = u.valToPos(ys[i], "y", true);
      if (down) ctx.lineTo(x, y); else ctx.moveTo(x, y);
      down = true;
    }
    ctx.globalAlpha = alpha();
    ctx.strokeStyle = series.stroke();
    ctx.lineWidth = series.width * ratio;
    ctx.lineJoin = "round";
    ctx.lineCap = "round";
    ctx.setLineDash((series.dash ?? []).map((length) => length * ratio));
    if (xs.length === 1) { // a single point has no line
      ctx.setLineDash([]);
      ctx.arc(u.valToPos(xs[0], "x", true), u.valToPos(ys[0], "y", true), 3 * ratio, 0, 2 * Math.PI);
    }
    ctx.stroke();
    ctx.restore();
    return null;
  }

  #marks(u) {
    const { ctx, bbox } = u, ratio = devicePixelRatio || 1;
    const dot = (value, colour, size) => {
      const x = u.valToPos(value[0], "x", true), y = u.valToPos(value[1], "y", true);
      if (!(x >= bbox.left && x <= bbox.left + bbox.width && y >= bbox.top && y <= bbox.top + bbox.height)) return;
      ctx.beginPath();
      ctx.arc(x, y, size * ratio, 0, 2 * Math.PI);
      ctx.fillStyle = colour;
      ctx.fill();
      ctx.lineWidth = 2 * ratio;
      ctx.strokeStyle = css("--card");
      ctx.stroke();
    };
    ctx.save();
    for (const one of this.drawn) for (const line of one.lines) if (line.mark) dot(line.mark, one.colour, 4.5);
    if (this.near >= 0 && this.at) dot(this.at, this.drawn[this.near].colour, 5);
    ctx.restore();
  }

  #selected(u) {
    const { left, width } = u.select;
    if (width < 5) return;
    const range = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.handlers.zoom(range);
  }

  /** The point nearest to the pointer, if it is near. */
  #hover(u) {
    const { left, top } = u.cursor;
    if (left == null || left < 0) return;
    const x = u.posToVal(left, "x");
    let best = 40 * 40, found = -1, at = null;
    this.drawn.forEach((one, index) => {
      const { x: xs, y: ys } = one.lines[0];
      const middle = nearest(xs, x);
      for (let i = Math.max(0, middle - 3); i <= Math.min(xs.length - 1, middle + 3); i++) {
        const dx = u.valToPos(xs[i], "x") - left, dy = u.valToPos(ys[i], "y") - top;
        const distance = dx * dx + dy * dy;
        if (distance < best) [best, found, at] = [distance, index, [xs[i], ys[i]]];
      }
    });
    this.#point(found, at);
  }

  #point(index, at = null) {
    if (index === this.near && at?.[0] === this.at?.[0] && at?.[1] === this.at?.[1]) return;
    this.near = index;
    this.at = at;
    this.tip.hidden = index < 0;
    this.handlers.near(index);
    if (!this.u) return;
    this.u.redraw(false);
    if (index < 0) return;
    const one = this.drawn[index];
    const name = Object.assign(document.createElement("b"), { textContent: one.label });
    const where = Object.assign(document.createElement("small"), { textContent: this.#where(one.curve, at[0]) });
    this.tip.replaceChildren(name, document.createElement("br"), `${this.options.metric} ${shown(at[1])} `, where);
    name.style.color = one.colour;
    const left = this.u.over.offsetLeft + this.u.valToPos(at[0], "x") + this.element.offsetLeft;
    const top = this.u.over.offsetTop + this.u.valToPos(at[1], "y") + this.element.offsetTop;
    const flip = left > this.element.clientWidth * 0.65;
    this.tip.style.left = flip ? "" : `${left + 14}px`;
    this.tip.style.right = flip ? `${this.element.parentElement.clientWidth - left + 14}px` : "";
    this.tip.style.top = `${Math.max(top - 20, 4)}px`;
  }

  #where(curve, x) {
    if (curve.xIs === "time") return new Date(x * 1000).toLocaleString();
    return curve.xIs === "elapsed" ? `after ${duration(x)}` : `at ${curve.xIs} ${x.toLocaleString()}`;
  }

  #key(event) {
    if (!this.u || event.ctrlKey || event.metaKey || event.altKey) return;
    const [first, last] = this.limits.x, width = last - first;
    const middle = this.at ? this.at[0] : (first + last) / 2;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], other = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step) this.#walk(step * (event.shiftKey ? 20 : 1));
    else if (other) this.#change(other);
    else if (event.key === "+" || event.key === "=") this.handlers.zoom([middle - width / 4, middle + width / 4]);
    else if (event.key === "-") this.handlers.zoom(this.options.range ? [middle - width, middle + width] : null);
    else if (event.key === "0" || event.key === "Escape") this.handlers.zoom(null);
    else return;
    event.preventDefault();
  }

  /** To the curve's next drawn point. */
  #walk(step) {
    const index = Math.max(this.near, 0), { x, y } = this.drawn[index].lines[0];
    if (!x.length) return;
    const [first, last] = this.limits.x;
    let at = this.near < 0 ? nearest(x, step > 0 ? first : last) : nearest(x, this.at[0]) + step;
    at = Math.min(Math.max(at, 0), x.length - 1);
    this.#point(index, [x[at], y[at]]);
    this.#say();
  }

  #change(step) {
    const index = (Math.max(this.near, 0) + (this.near < 0 ? 0 : step) + this.drawn.length) % this.drawn.length;
    const { x, y } = this.drawn[index].lines[0];
    if (!x.length) return;
    const at = nearest(x, this.at ? this.at[0] : this.limits.x[0]);
    this.#point(index, [x[at], y[at]]);
    this.#say();
  }

  #say() {
    const { label, curve } = this.drawn[this.near];
    this.reading.textContent = `${label}: ${this.options.metric} ${shown(this.at[1])} ${this.#where(curve, this.at[0])}`;
  }
}

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

/** Squared distance of the origin from the piece of line between two points. */
function toSegment([x0, y0], [x1, y1]) {
  const dx = x1 - x0, dy = y1 - y0, length = dx * dx + dy * dy;
  const t = length ? Math.min(1, Math.max(0, -(x0 * dx + y0 * dy) / length)) : 0;
  return (x0 + t * dx) ** 2 + (y0 + t * dy) ** 2;
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
    const same = JSON.stringify([options.log, options.log && drawn.length && options.range, options.x, options.xLabel, drawn.map((one) => [one.colour, one.lines.map((l) => [l.width, l.alpha, l.dash])]), css("--text")]);
    this.drawn = drawn;
    this.options = options;
    this.#limits();
    // Layer by layer: no curve's faint line lies over another's smooth one.
    const layers = Math.max(0, ...drawn.map((one) => one.lines.length));
    this.order = [];
    for (let layer = 0; layer < layers; layer++) drawn.forEach((one) => one.lines[layer] && this.order.push([one, one.lines[layer]]));
    const data = [null, ...this.order.map(([, line]) => [line.x, line.y])];
    if (this.u && same === this.same) {
      this.u.setData(data);
      this.#overlay();
      return;
    }
    this.same = same;
    this.u?.destroy();
    this.u = null;
    this.near = this.marked = -1;
    this.tip.hidden = true;
    if (!drawn.length) return;
    this.u = new uPlot(this.#uplotOptions(), data, this.element);
    this.glass = document.createElement("canvas"); // what stands out is drawn here: the curves below stay as they are
    this.glass.className = "glass";
    this.u.over.before(this.glass);
    this.u.over.addEventListener("dblclick", () => this.handlers.zoom(null));
    this.u.over.addEventListener("mouseleave", () => this.#point(-1));
  }

  /** Fit the element. */
  resize() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (this.u && width && height) this.u.setSize({ width, height });
    this.#overlay();
  }

  /** Let one curve stand out; -1: none. */
  highlight(index) {
    if (index === this.marked || !this.u) return;
    this.marked = index;
    this.#overlay();
  }

  #overlay() {
    const { u, glass } = this;
    if (!u) return;
    const ratio = devicePixelRatio || 1, { left, top, width, height } = u.bbox;
    Object.assign(glass, { width, height });
    Object.assign(glass.style, { left: `${left / ratio}px`, top: `${top / ratio}px`, width: `${width / ratio}px`, height: `${height / ratio}px` });
    const index = this.marked < 0 ? this.near : this.marked, one = this.drawn[index];
    if (!one) return;
    const ctx = glass.getContext("2d");
    ctx.globalAlpha = 0.7;
    ctx.fillStyle = css("--card");
    ctx.fillRect(0, 0, width, height);
    ctx.translate(-left, -top);
    one.lines.forEach((line, layer) => this.#stroke(ctx, line, one.colour, layer === one.lines.length - 1 ? 1 : Math.max(line.alpha, 0.35)));
    for (const line of one.lines) if (line.mark) this.#dot(ctx, line.mark, one.colour, 4.5);
    if (this.near === index && this.at) this.#dot(ctx, this.at, one.colour, 5);
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
        { ...axis, scale: "x", label: xLabel || undefined, labelSize: 20, labelGap: 0, size: x === "time" ? 50 : 34, space: 70, ...(values ? { values } : {}) },
        { ...axis, scale: "y", size: 66, splits: this.#splits(log), values: (_, splits) => splits.map((v) => (v == null ? "" : shown(v))) },
      ],
      series: [{}, ...this.order.map((_, index) => this.#series(index))],
      cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false }, dataIdx: () => null, bind: { dblclick: () => () => null } },
      hooks: {
        setCursor: [(u) => this.#hover(u)],
        setSelect: [(u) => this.#selected(u)],
        draw: [(u) => this.#marks(u)],
      },
    };
  }

  /** A log scale of less than a decade and a half is told by round numbers, not by powers of ten. */
  #splits(log) {
    if (!log || this.limits.y[1] / this.limits.y[0] > 30) return undefined;
    return () => {
      const [low, high] = this.limits.y, rough = (high - low) / 6, power = 10 ** Math.floor(Math.log10(rough));
      const step = power * [1, 2, 5, 10].find((n) => n * power >= rough), found = [];
      for (let n = Math.ceil(low / step); n * step <= high; n++) found.push(n * step);
      return found;
    };
  }

  #series(index) {
    return {
      facets: [{ scale: "x", auto: true }, { scale: "y", auto: true }],
      points: { show: false },
      // Drawn here, so that it can be faint and have gaps; uPlot is given nothing to stroke.
      paths: (u) => {
        const [one, line] = this.order[index], { left, top, width, height } = u.bbox;
        u.ctx.save();
        u.ctx.beginPath();
        u.ctx.rect(left, top, width, height);
        u.ctx.clip();
        this.#stroke(u.ctx, line, one.colour, line.alpha);
        u.ctx.restore();
        return null;
      },
    };
  }

  #stroke(ctx, { x: xs, y: ys, width, dash = [] }, colour, alpha) {
    const ratio = devicePixelRatio || 1, log = this.options.log;
    // Linear in between: two positions of each scale say all.
    const { x: [x0, x1], y: limits } = this.limits, scale = log ? Math.log : Number;
    const [y0, y1] = limits.map(scale);
    const px = this.u.valToPos(x0, "x", true), kx = (this.u.valToPos(x1, "x", true) - px) / (x1 - x0);
    const py = this.u.valToPos(limits[0], "y", true), ky = (this.u.valToPos(limits[1], "y", true) - py) / (y1 - y0);
    ctx.save();
    ctx.beginPath();
    let down = false;
    for (let i = 0; i < xs.length; i++) {
      if (log && !(ys[i] > 0)) { down = false; continue; }
      const x = px + (xs[i] - x0) * kx, y = py + (scale(ys[i]) - y0) * ky;
      if (down) ctx.lineTo(x, y); else ctx.moveTo(x, y);
      down = true;
    }
    if (xs.length === 1 && down) { // a single point has no line
      dash = [];
      ctx.arc(px + (xs[0] - x0) * kx, py + (scale(ys[0]) - y0) * ky, 3 * ratio, 0, 2 * Math.PI);
    }
    ctx.globalAlpha = alpha;
    ctx.strokeStyle = colour;
    ctx.lineWidth = width * ratio;
    ctx.lineJoin = "round";
    ctx.setLineDash(dash.map((length) => length * ratio));
    ctx.stroke();
    ctx.restore();
  }

  #dot(ctx, value, colour, size) {
    const { left, top, width, height } = this.u.bbox, ratio = devicePixelRatio || 1;
    const x = this.u.valToPos(value[0], "x", true), y = this.u.valToPos(value[1], "y", true);
    if (!(x >= left && x <= left + width && y >= top && y <= top + height)) return;
    ctx.save();
    ctx.beginPath();
    ctx.arc(x, y, size * ratio, 0, 2 * Math.PI);
    ctx.fillStyle = colour;
    ctx.fill();
    ctx.lineWidth = 2 * ratio;
    ctx.strokeStyle = css("--card");
    ctx.stroke();
    ctx.restore();
  }

  #marks(u) {
    for (const one of this.drawn) for (const line of one.lines) if (line.mark) this.#dot(u.ctx, line.mark, one.colour, 4.5);
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
      let before = null; // the distance is that to the line, the point the nearer end of its piece
      for (let i = Math.max(0, middle - 3); i <= Math.min(xs.length - 1, middle + 3); i++) {
        const here = [u.valToPos(xs[i], "x") - left, u.valToPos(ys[i], "y") - top, i];
        const distance = before ? toSegment(before, here) : here[0] ** 2 + here[1] ** 2;
        if (distance < best) {
          const end = before && before[0] ** 2 + before[1] ** 2 < here[0] ** 2 + here[1] ** 2 ? before[2] : i;
          [best, found, at] = [distance, index, [xs[end], ys[end]]];
        }
        before = here;
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
    this.#overlay();
    if (!this.u || index < 0) return;
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

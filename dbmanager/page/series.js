// What the page computes from curves; no DOM, no network.

/** Means over a window that is `fraction` of the range wide, centred on each point. `weights`: values behind each point. */
export function smooth(xs, ys, weights, fraction, range) {
  const half = (range ?? (xs.at(-1) - xs[0])) * fraction / 2;
  if (!(half > 0)) return ys;
  const out = new Array(xs.length);
  let sum = 0, total = 0, begin = 0, end = 0;
  for (let i = 0; i < xs.length; i++) {
    while (end < xs.length && xs[end] <= xs[i] + half) {
      sum += ys[end] * weights[end];
      total += weights[end++];
    }
    while (xs[begin] < xs[i] - half) {
      sum -= ys[begin] * weights[begin];
      total -= weights[begin++];
    }
    out[i] = sum / total;
  }
  return out;
}

/** The best value so far as a staircase; `which` is "least" or "greatest", `before` the best left of the first point. */
export function bestSoFar(xs, ys, which, before) {
  const better = which === "least" ? (a, b) => a < b : (a, b) => a > b;
  const x = [], y = [];
  let best = before;
  for (let i = 0; i < xs.length; i++) {
    if (best == null || better(ys[i], best)) {
      if (best != null) { x.push(xs[i]); y.push(best); }
      best = ys[i];
      x.push(xs[i]); y.push(best);
    } else if (i === 0) {
      x.push(xs[0]); y.push(best);
    }
  }
  if (x.length) { x.push(xs.at(-1)); y.push(best); }
  return [x, y];
}

/** Index of the x nearest to `x`; -1 of none. */
export function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  if (high < 0) return -1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1; else high = middle;
  }
  return low > 0 && x - xs[low - 1] <= xs[low] - x ? low - 1 : low;
}

/** Put a point into ascending xs; nearly always at the end. */
export function insert(xs, ys, x, y) {
  let at = xs.length;
  while (at > 0 && xs[at - 1] > x) at--;
  xs.splice(at, 0, x);
  ys.splice(at, 0, y);
}

/** A number in at most six digits. */
export function shown(value) {
  if (value == null) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(+value.toPrecision(6));
}

/** Seconds as 5 s, 2:05, 1:02:05, 3 d 1:02:05. */
export function duration(seconds) {
  if (seconds < 60) return `${+seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const whole = Math.round(seconds), days = Math.floor(whole / 86400);
  const hours = Math.floor(whole / 3600) % 24, minutes = Math.floor(whole / 60) % 60;
  const two = (n) => String(n).padStart(2, "0");
  const clock = hours || days ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
  return days ? `${days} d ${clock}` : clock;
}

// The first ten are told apart by people who see fewer colours, too; further ones go round the wheel.
const LIGHT = ["#2563eb", "#d9480f", "#16803c", "#a21caf", "#b45309", "#0e7490", "#be123c", "#6d28d9", "#4d7c0f", "#475569"];
const DARK = ["#6ea0ff", "#ff9a5c", "#5cd586", "#f08cff", "#f5c04a", "#4fd1e0", "#ff8095", "#b79bff", "#b4d455", "#b6c2d1"];

/** The colour of the n-th curve. */
export function colour(n, dark) {
  const first = dark ? DARK : LIGHT;
  if (n < first.length) return first[n];
  return `hsl(${(n * 137.508) % 360} ${dark ? 70 : 62}% ${dark ? 66 - (n % 3) * 6 : 36 + (n % 3) * 7}%)`;
}

/** Server-sent events out of text that arrives in any pieces. */
export class EventReader {
  #rest = "";
  id = null;

  /** The whole events in what came so far: [{event, data}]. */
  read(text) {
    const parts = (this.#rest + text).split("\n\n");
    this.#rest = parts.pop();
    const events = [];
    for (const part of parts) {
      const found = { event: "message", data: "" };
      for (const line of part.split("\n")) {
        const colon = line.indexOf(":");
        const name = line.slice(0, colon), value = line.slice(colon + 1).replace(/^ /, "");
        if (name === "id") this.id = value;
        else if (name === "event") found.event = value;
        else if (name === "data") found.data += value;
      }
      if (found.data) events.push(found);
    }
    return events;
  }
}

/** A trial as one word: NAMESPACE/NAME, or NAME where nobody said a namespace (/NAME when that holds a slash). */
export function word(trial) {
  if (trial.namespace) return `${trial.namespace}/${trial.name}`;
  return trial.name.includes("/") ? `/${trial.name}` : trial.name;
}

/** The reverse of `word`. */
export function trialOf(text) {
  const slash = text.indexOf("/");
  return slash < 0 ? { namespace: null, name: text } : { namespace: text.slice(0, slash) || null, name: text.slice(slash + 1) };
}

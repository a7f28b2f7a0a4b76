// The page: what is chosen, what is asked of the server, what is drawn.
import { bestSoFar, colour, duration, EventReader, insert, nearest, shown, smooth, trialOf, word } from "./series.js";
import { Plot } from "./plot.js";

const $ = (id) => document.getElementById(id);
const API = "api/v1/"; // relative: the page may be behind a proxy's path
const MOST = 500; // trials in one request
const state = {
  chosen: new Map(), // word -> {namespace, name}
  listed: [], // trials of the list
  next: null, // cursor of the list's next page
  metric: null,
  curves: [],
  range: null, // [first, last] when zoomed in
  cursor: 0, // row id up to which the curves are drawn
  sort: ["name", 1],
};
let plot;

// ---------------------------------------------------------------- asking the server

class Fault extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(API + path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Fault("The DB manager does not answer; is it running, and is the port still forwarded?", 0);
  }
  if (response.ok) return response;
  let detail = `HTTP ${response.status}`;
  try { detail = (await response.json()).detail ?? detail; } catch { /* not ours: the status says it */ }
  throw new Fault(detail, response.status);
}

function complain(error) {
  if (error?.name === "AbortError") return;
  $("fault").hidden = !error;
  $("fault").textContent = error ? error.message : "";
  if (error?.status === 401) $("token-form").hidden = false;
  if (error && !(error instanceof Fault)) console.error(error);
}

// ---------------------------------------------------------------- the list of trials

async function listTrials(more = false) {
  const query = new URLSearchParams({ limit: more ? 1000 : Math.max(200, Math.min(1000, state.listed.length)) });
  if ($("prefix").value) query.set("prefix", $("prefix").value);
  if ($("namespace").value) query.set("namespace", $("namespace").value);
  if (more) query.set("cursor", state.next);
  const page = await (await ask(`trials?${query}`)).json();
  state.listed = more ? [...state.listed, ...page.trials] : page.trials;
  state.next = page.next;
  $("more").hidden = !state.next;
  offerNamespaces();
  showTrials();
}

function offerNamespaces() {
  const select = $("namespace"), known = new Set([...select.options].map((option) => option.value));
  for (const { namespace } of state.listed) {
    if (namespace && !known.has(namespace)) {
      known.add(namespace);
      select.add(new Option(namespace, namespace));
    }
  }
}

function showTrials() {
  const several = new Set(state.listed.map((trial) => trial.namespace)).size > 1;
  const focused = document.activeElement?.value;
  $("trials").replaceChildren(...state.listed.map((trial) => {
    const item = document.createElement("li"), label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", value: word(trial) });
    box.checked = state.chosen.has(box.value);
    const swatch = Object.assign(document.createElement("span"), { className: "swatch" });
    const name = Object.assign(document.createElement("span"), { className: "name", textContent: trial.name });
    if (several) name.append(" ", Object.assign(document.createElement("small"), { textContent: trial.namespace ?? "no namespace" }));
    label.append(box, swatch, name);
    if (trial.live) label.append(Object.assign(document.createElement("span"), { className: "beat", textContent: "● live" }));
    label.title = trial.lastSeen ? `last heard of ${new Date(trial.lastSeen).toLocaleString()}` : "";
    item.append(label);
    return item;
  }));
  if (focused) [...$("trials").querySelectorAll("input")].find((box) => box.value === focused)?.focus();
  if (!state.listed.length) {
    const filtered = $("prefix").value || $("namespace").value;
    $("trials").textContent = filtered ? "No trial matches." : "No trial has reported yet. This list looks again by itself.";
  }
  showSwatches();
}

function showSwatches() {
  const colours = new Map();
  for (const curve of [...state.curves].reverse()) colours.set(curve.key, curve.colour);
  for (const label of $("trials").querySelectorAll("label")) {
    label.querySelector(".swatch").style.background = colours.get(label.querySelector("input").value) ?? "";
  }
  $("chosen").textContent = `${state.chosen.size} chosen`;
}

function choose(trials) {
  state.chosen = new Map(trials.slice(0, MOST).map((trial) => [word(trial), { namespace: trial.namespace, name: trial.name }]));
  complain(trials.length > MOST ? new Fault(`At most ${MOST} trials are drawn: the first ${MOST} were chosen.`) : null);
  state.range = null;
  showTrials();
  draw();
}

// ---------------------------------------------------------------- curves

const options = () => ({
  x: document.querySelector("input[name=x]:checked").value,
  best: document.querySelector("input[name=best]:checked").value,
  smoothing: $("smoothing").value / 100,
  log: $("log").checked,
  apart: $("apart").checked,
});

let asking = null; // the request under way
async function draw() {
  asking?.abort();
  const mine = (asking = new AbortController());
  listening?.abort();
  remember();
  if (!state.chosen.size) {
    Object.assign(state, { curves: [] });
    $("metric").replaceChildren();
    show();
    return;
  }
  const { x, apart } = options();
  const width = $("plot").clientWidth || 800;
  const asked = {
    trials: [...state.chosen.values()],
    metric: state.metric,
    x,
    apart,
    // Where many curves lie over each other, fewer columns each.
    buckets: Math.max(100, Math.min(Math.round(width / 2), Math.round(20000 / state.chosen.size))),
    first: state.range?.[0] ?? null,
    last: state.range?.[1] ?? null,
  };
  try {
    const response = await ask("curves", {
      method: "POST",
      body: JSON.stringify(asked),
      headers: { "Content-Type": "application/json" },
      signal: mine.signal,
    });
    const answer = await response.json();
    if (mine.signal.aborted) return;
    complain(null);
    take(answer);
    show();
    listen();
  } catch (error) {
    complain(error);
    if (error.name !== "AbortError") setTimeout(() => mine === asking && draw(), 5000);
  }
}

function take(answer) {
  state.metric = answer.metric;
  state.cursor = answer.cursor;
  state.missing = answer.missing;
  const offered = [...answer.metrics];
  if (answer.metric && !offered.includes(answer.metric)) offered.push(answer.metric);
  $("metric").replaceChildren(...offered.map((name) => new Option(name, name, false, name === answer.metric)));
  const whole = new Map(answer.curves.map((curve) => [curve.trial, { namespace: curve.namespace, name: curve.trial }]));
  // An address may name a trial without its namespace: the answer tells which it is.
  const before = [...state.chosen.keys()].join();
  state.chosen = new Map([...state.chosen.values()].map((trial) => {
    const found = trial.namespace == null ? whole.get(trial.name) ?? trial : trial;
    return [word(found), found];
  }));
  const order = [...state.chosen.keys()];
  if (order.join() !== before) { remember(); showTrials(); }
  const dark = isDark();
  state.curves = answer.curves.map((curve, index) => {
    const key = word({ namespace: curve.namespace, name: curve.trial });
    const place = options().apart ? index : Math.max(order.indexOf(key), 0);
    return { ...curve, key, place, colour: colour(place, dark), fresh: 0 };
  });
}

function label(curve) {
  const several = new Set(state.curves.map((other) => other.namespace)).size > 1;
  let text = several && curve.namespace ? `${curve.namespace}/${curve.trial}` : curve.trial;
  if (options().apart) {
    if (curve.attempt != null) text += ` · attempt ${curve.attempt}`;
    if (curve.pod) text += ` · ${curve.pod}`;
  }
  return text;
}

/** Lines of a curve: {x, y, width, alpha, dash}. */
function lines(curve, { best, smoothing, log }, range) {
  const made = [];
  const soft = smoothing > 0 || best;
  const faint = Math.max(0.07, Math.min(1, Math.sqrt(8 / state.curves.length)) * (smoothing > 0 ? 0.28 : 0.45)); // many faint lines are not
  made.push({ x: curve.x, y: curve.y, width: soft ? 1 : 1.6, alpha: soft ? faint : 1 });
  if (smoothing > 0) {
    const whole = curve.means.length > 0; // then x, y are the peaks only, and what came live since
    const x = whole ? [...curve.meansX] : curve.x, y = whole ? [...curve.means] : curve.y;
    const weights = whole ? [...curve.weights] : new Array(x.length).fill(1);
    if (whole) {
      for (let i = curve.x.length - curve.fresh; i < curve.x.length; i++) {
        x.push(curve.x[i]);
        y.push(curve.y[i]);
        weights.push(1);
      }
    }
    made.push({ x, y: smooth(x, y, weights, smoothing, range && range[1] - range[0]), width: 2, alpha: 1 });
  }
  if (best) {
    const [x, y] = bestSoFar(curve.x, curve.y, best, best === "least" ? curve.leastBefore : curve.greatestBefore);
    const at = curve[best];
    made.push({ x, y, width: 2, alpha: 1, dash: smoothing > 0 ? [6, 4] : undefined, mark: at && [at.x, at.value] });
  }
  return log ? made.map((line) => ({ ...line, mark: line.mark?.[1] > 0 ? line.mark : undefined })) : made;
}

function show() {
  const chosen = options();
  const drawn = state.curves.map((curve) => ({
    colour: curve.colour,
    label: label(curve),
    lines: lines(curve, chosen, state.range),
    curve,
  }));
  const counted = state.curves.some((curve) => curve.xIs === "report");
  plot.draw(drawn, {
    log: chosen.log,
    x: chosen.x,
    xLabel: { step: counted ? "report (some rows have no step)" : "step", time: "", elapsed: "since the first point" }[chosen.x],
    range: state.range,
    metric: state.metric,
  });
  $("reset").disabled = !state.range;
  const some = drawn.some((one) => one.curve.x.length);
  $("empty").hidden = some && !plot.nothing;
  $("empty").textContent = !state.chosen.size
    ? "Choose trials on the left."
    : some
      ? "No value in view is above zero, so a log scale has nothing to show."
      : state.curves.length
        ? `No value of ${state.metric} is a finite number.`
        : "These trials have no points yet. They appear here as soon as there are some.";
  showNumbers(chosen);
  showSwatches();
}

// ---------------------------------------------------------------- numbers below the plot

function at(extreme, { x }) {
  if (!extreme) return "";
  if (extreme.step != null) return `step ${extreme.step}`;
  return x === "elapsed" ? duration(extreme.x) : x === "step" ? `report ${extreme.x}` : new Date(extreme.time).toLocaleTimeString();
}

function showNumbers(chosen) {
  const [by, direction] = state.sort;
  const value = (curve) => ({
    name: label(curve), attempt: curve.attempt ?? -1, pod: curve.pod ?? "", count: curve.count,
    latest: curve.latest?.value, least: curve.least?.value, greatest: curve.greatest?.value,
  })[by];
  const sorted = [...state.curves].sort((one, other) => {
    const a = value(one), b = value(other);
    if (a == null || b == null) return (a == null) - (b == null); // without a value: last, whichever way
    return direction * (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
  });
  document.querySelector("table").classList.toggle("together", !chosen.apart);
  for (const button of document.querySelectorAll("th button")) {
    const mine = button.dataset.sort === by;
    button.parentElement.ariaSort = mine ? (direction > 0 ? "ascending" : "descending") : "none";
  }
  const several = new Set(state.curves.map((curve) => curve.namespace)).size > 1;
  $("numbers").replaceChildren(...sorted.map((curve) => {
    const row = document.createElement("tr");
    row.dataset.index = state.curves.indexOf(curve);
    const cell = (...parts) => {
      const made = document.createElement("td");
      made.append(...parts);
      row.append(made);
      return made;
    };
    const small = (text) => Object.assign(document.createElement("small"), { textContent: text });
    const swatch = Object.assign(document.createElement("span"), { className: "swatch" });
    swatch.style.background = curve.colour;
    cell(swatch, curve.trial, several ? small(curve.namespace ?? "") : "");
    cell(curve.attempt ?? "–").className = "who";
    cell(curve.pod ?? "–").className = "who";
    const points = cell(curve.count.toLocaleString());
    if (curve.nonfinite) {
      const warn = Object.assign(document.createElement("span"), { className: "warn" });
      const where = { step: `step ${curve.firstNonfinite}`, report: `report ${curve.firstNonfinite}`, elapsed: duration(curve.firstNonfinite ?? 0), time: new Date(1000 * curve.firstNonfinite).toLocaleTimeString() }[curve.xIs];
      warn.textContent = ` ${curve.nonfinite.toLocaleString()} not finite`;
      warn.title = `nan, infinite or no number, the first at ${where}; never taken for the best`;
      points.append(warn);
    }
    for (const name of ["latest", "least", "greatest"]) {
      const extreme = curve[name];
      cell(shown(extreme?.value), " ", small(name === "latest" ? "" : at(extreme, chosen)));
    }
    return row;
  }));
}

// ---------------------------------------------------------------- live

let listening = null;
async function listen() {
  listening?.abort();
  if (!$("live").checked || !state.chosen.size) return status();
  const mine = (listening = new AbortController());
  const reader = new EventReader();
  let after = state.cursor;
  while (!mine.signal.aborted) {
    try {
      const query = new URLSearchParams({ after });
      for (const key of state.chosen.keys()) query.append("trial", key);
      const response = await ask(`events?${query}`, { signal: mine.signal, headers: reader.id ? { "Last-Event-ID": reader.id } : {} });
      status("live");
      const stream = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let read = await stream.read(); !read.done; read = await stream.read()) {
        for (const event of reader.read(read.value)) if (event.event === "points") add(JSON.parse(event.data));
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status) return complain(error); // an answer, not an outage
    }
    if (mine.signal.aborted) return;
    status("reconnecting…");
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

function status(text) {
  $("status").textContent = text ?? "";
}

let redraw = 0;
function add(points) {
  const { apart } = options();
  const byKey = new Map(state.curves.map((curve) => [`${curve.namespace ?? ""} ${curve.trial} ${apart ? `${curve.attempt} ${curve.pod}` : ""}`, curve]));
  const metrics = new Set([...$("metric").options].map((option) => option.value));
  let anew = false;
  for (const point of points) {
    anew ||= !metrics.has(point.name);
    if (point.name !== state.metric) continue;
    const curve = byKey.get(`${point.namespace ?? ""} ${point.trial} ${apart ? `${point.attempt} ${point.pod}` : ""}`);
    // A new trial, pod or attempt, a step where none were told or none where some were: the server knows best.
    if (!curve || (!apart && (point.attempt ?? 0) > (curve.attempt ?? 0)) || (curve.xIs === "step" && point.step == null)) {
      anew = true;
    } else if (apart || (point.attempt ?? 0) === (curve.attempt ?? 0)) {
      append(curve, point);
      anew ||= curve.fresh > 1000; // to be thinned again
    }
  }
  redraw ||= setTimeout(() => {
    redraw = 0;
    if (anew) draw(); else show();
  }, anew ? 1000 : 250);
}

function append(curve, point) {
  const seconds = Date.parse(point.time) / 1000, value = point.value.trim() === "" ? NaN : Number(point.value);
  const x = { step: point.step, report: curve.count + 1, time: seconds, elapsed: seconds - curve.start }[curve.xIs];
  curve.count += 1;
  if (!Number.isFinite(value)) {
    curve.nonfinite += 1;
    curve.firstNonfinite ??= x;
    return;
  }
  const extreme = { value, x, step: point.step, time: point.time };
  if (!curve.least || value < curve.least.value) curve.least = extreme;
  if (!curve.greatest || value > curve.greatest.value) curve.greatest = extreme;
  if (!curve.latest || x >= curve.latest.x) curve.latest = extreme;
  if (state.range && x > state.range[1]) return;
  insert(curve.x, curve.y, x, value);
  curve.fresh += 1;
}

// ---------------------------------------------------------------- CSV

async function download() {
  const button = $("download");
  button.disabled = true;
  try {
    const parts = [];
    let done = 0;
    for (const { namespace, name } of state.chosen.values()) {
      button.textContent = `Downloading ${++done} of ${state.chosen.size}…`;
      const query = new URLSearchParams({ format: "csv" });
      if (namespace) query.set("namespace", namespace);
      if (state.metric) query.append("metric", state.metric);
      const text = await (await ask(`trials/${encodeURIComponent(name)}/metrics?${query}`)).text();
      parts.push(parts.length ? text.slice(text.indexOf("\n") + 1) : text);
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(parts, { type: "text/csv" }));
    link.download = `${state.chosen.size === 1 ? [...state.chosen.values()][0].name : "trials"}-${state.metric ?? "metrics"}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  } catch (error) {
    complain(error);
  }
  button.disabled = false;
  button.textContent = "Download CSV";
}

// ---------------------------------------------------------------- the address holds what is shown

function remember() {
  const { x, best, smoothing, log, apart } = options();
  const query = new URLSearchParams();
  for (const key of state.chosen.keys()) query.append("trial", key);
  if (state.metric) query.set("metric", state.metric);
  if (x !== "step") query.set("x", x);
  if (best) query.set("best", best);
  if (smoothing) query.set("smoothing", smoothing * 100);
  if (log) query.set("log", "1");
  if (apart) query.set("apart", "1");
  history.replaceState(null, "", `#${query}`);
}

function recall() {
  const query = new URLSearchParams(location.hash.slice(1));
  state.chosen = new Map(query.getAll("trial").slice(0, MOST).map((key) => [key, trialOf(key)]));
  state.metric = query.get("metric");
  for (const name of ["x", "best"]) {
    const wanted = document.querySelector(`input[name=${name}][value="${CSS.escape(query.get(name) ?? "")}"]`);
    if (wanted) wanted.checked = true;
  }
  $("smoothing").value = query.get("smoothing") ?? 0;
  $("log").checked = query.has("log");
  $("apart").checked = query.has("apart");
  return query.has("trial");
}

// ---------------------------------------------------------------- light and dark

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";

function useTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  $("theme").textContent = `Theme: ${theme || "system"}`;
  const dark = isDark();
  for (const curve of state.curves) curve.colour = colour(curve.place, dark);
  if (plot) show();
}

function nextTheme() {
  const themes = ["", "light", "dark"];
  const theme = themes[(themes.indexOf(localStorage.getItem("theme") ?? "") + 1) % 3];
  localStorage.setItem("theme", theme);
  useTheme(theme);
}

// ---------------------------------------------------------------- wiring

function zoom(range) {
  state.range = range;
  draw();
}

function near(index) {
  for (const row of $("numbers").rows) row.classList.toggle("near", Number(row.dataset.index) === index);
}

let typing = 0;
function wire() {
  plot = new Plot($("plot"), $("tip"), $("reading"), { zoom, near });
  $("trials").addEventListener("change", (event) => {
    if (event.target.checked) {
      if (state.chosen.size >= MOST) {
        event.target.checked = false;
        return complain(new Fault(`At most ${MOST} trials are drawn.`));
      }
      state.chosen.set(event.target.value, trialOf(event.target.value));
    } else state.chosen.delete(event.target.value);
    state.range = null;
    showSwatches();
    draw();
  });
  $("prefix").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => listTrials().catch(complain), 200);
  });
  $("namespace").addEventListener("change", () => listTrials().catch(complain));
  $("more").addEventListener("click", () => listTrials(true).catch(complain));
  $("all").addEventListener("click", () => choose(state.listed));
  $("none").addEventListener("click", () => choose([]));
  $("metric").addEventListener("change", () => {
    state.metric = $("metric").value;
    draw();
  });
  for (const input of document.querySelectorAll("input[name=x]")) {
    input.addEventListener("change", () => zoom(null)); // a range of steps is none of seconds
  }
  for (const input of [...document.querySelectorAll("input[name=best]"), $("log")]) {
    input.addEventListener("change", () => { remember(); show(); });
  }
  $("smoothing").addEventListener("input", () => {
    const value = Number($("smoothing").value);
    $("smoothing-value").textContent = value ? `${value} %` : "off";
    remember();
    show();
  });
  $("apart").addEventListener("change", draw);
  $("reset").addEventListener("click", () => zoom(null));
  $("download").addEventListener("click", download);
  $("live").addEventListener("change", () => ($("live").checked ? draw() : (listening?.abort(), status())));
  $("theme").addEventListener("click", nextTheme);
  systemDark.addEventListener("change", () => useTheme(localStorage.getItem("theme") ?? ""));
  $("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", $("token").value.trim());
    $("token-form").hidden = true;
    start();
  });
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const by = button.dataset.sort;
      state.sort = [by, state.sort[0] === by ? -state.sort[1] : 1];
      showNumbers(options());
    });
  }
  for (const type of ["mouseover", "mouseleave"]) {
    $("numbers").addEventListener(type, (event) => {
      const row = event.target.closest("tr");
      plot.highlight(type === "mouseover" && row ? Number(row.dataset.index) : -1);
    });
  }
  new ResizeObserver(() => plot.resize()).observe($("plot"));
}

async function start() {
  const recalled = recall();
  $("smoothing").dispatchEvent(new Event("input"));
  try {
    await listTrials();
    complain(null);
  } catch (error) {
    complain(error);
    if (error.status !== 401) setTimeout(start, 5000);
    return;
  }
  if (!recalled) {
    const newest = [...state.listed].sort((a, b) => (b.lastSeen ?? "").localeCompare(a.lastSeen ?? ""));
    state.chosen = new Map(newest.slice(0, 8).map((trial) => [word(trial), { namespace: trial.namespace, name: trial.name }]));
    showTrials();
  }
  draw();
}

useTheme(localStorage.getItem("theme") ?? "");
wire();
start();
setInterval(() => {
  if (!document.hidden && $("live").checked) listTrials().then(() => !state.chosen.size && start()).catch(complain);
}, 10_000);

// Charts of the last minutes or the last hour as SVG, and a map of the segments on a canvas. They
// depend only on the numbers that they receive.

const SVG = "http://www.w3.org/2000/svg";
/** Time spans of a chart in seconds: the smallest that holds all samples is used. */
const WINDOWS = [60, 120, 300, 900, 1800, 3600];
/** The number of parts of the time axis of each. */
const PARTS = { 60: 4, 120: 4, 300: 5, 900: 3, 1800: 3, 3600: 4 };
const LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 20;

function svg(name, attributes = {}, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

export function html(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Ticks from 0 that include `max`: at most five, at round numbers. */
function ticks(max) {
  const rough = max / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((times) => times * power).find((one) => one >= rough * 0.999);
  const count = Math.ceil(max / step - 1e-9);
  return Array.from({ length: count + 1 }, (_, at) => at * step);
}

/** Powers of ten around positive values. */
function decades(low, high) {
  const from = Math.floor(Math.log10(low)), to = Math.max(Math.ceil(Math.log10(high)), from + 1);
  return Array.from({ length: to - from + 1 }, (_, at) => 10 ** (from + at));
}

/**
 * Lines over time. `series`: name, colour (a CSS variable), dash; `format` writes a value with its
 * unit, `tick` one at the axis; `least` is the smallest top of the axis; `log` for decades.
 */
export class LineChart {
  constructor(place, { title, series, format, tick, least, log = false }) {
    Object.assign(this, { place, title, series, format, tick, least, log, seconds: WINDOWS[0] });
    this.times = [];
    this.legend = html("div", { class: "legend", "aria-hidden": "true" });
    this.values = series.map(({ name, colour, dash }) => {
      const key = svg("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" });
      const line = { x1: 0, x2: 24, y1: 4, y2: 4, "stroke-width": 3, stroke: `var(${colour})` };
      key.append(svg("line", { ...line, "stroke-dasharray": dash ?? "none" }));
      const value = html("b", {}, "–");
      this.legend.append(html("span", {}, key, `${name} `, value));
      return value;
    });
    this.drawing = svg("svg", { role: "img", "aria-label": title });
    this.rows = html("tbody");
    const heads = ["Seconds ago", ...series.map(({ name }) => name)];
    const head = html("tr", {}, ...heads.map((name) => html("th", { scope: "col", class: "r" }, name)));
    const table = html("table", {}, html("caption", { class: "small muted" }, title),
      html("thead", {}, head), this.rows);
    const scroll = html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title },
      table);
    this.details = html("details", {}, html("summary", {}, "As a table"), scroll);
    this.details.addEventListener("toggle", () => this.fill());
    place.append(this.legend, this.drawing, this.details);
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(place);
  }

  /**
   * Shows `lines`, an array of values (null for none) for each series, at `times` in seconds; each
   * value is an average over the time in `spans`.
   */
  update(times, spans, lines) {
    [this.times, this.spans, this.lines] = [times, spans, lines];
    const span = times.at(-1) - times[0];
    this.seconds = WINDOWS.find((one) => one >= span) ?? WINDOWS.at(-1);
    this.draw();
    this.fill();
  }

  fill() {
    if (!this.details.open || this.times.length === 0) return;
    const now = this.times.at(-1), rows = [];
    const step = Math.max(5, Math.ceil(this.times.length / 12));
    for (let at = this.times.length - 1; at >= 0 && rows.length < 12; at -= step) {
      const cells = this.lines.map((line) => html("td", { class: "r" }, this.format(line[at])));
      const ago = html("th", { scope: "row", class: "r" }, (now - this.times[at]).toFixed(0));
      rows.push(html("tr", {}, ago, ...cells));
    }
    this.rows.replaceChildren(...rows);
  }

  point(event) {
    if (this.times.length === 0) return;
    this.at = undefined;
    if (event) {
      const box = this.drawing.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      const wanted = this.times.at(-1) - (1 - share) * this.seconds;
      if (share >= 0 && share <= 1) this.at = this.times.findIndex((time) => time >= wanted);
    }
    this.draw();
  }

  /** The axis: its ticks and where a value is, from 0 to 1. */
  axis() {
    const values = this.lines.flat().filter((value) => value !== null && Number.isFinite(value));
    const highest = Math.max(this.least, ...values);
    if (!this.log) {
      const at = ticks(highest);
      return [at, (value) => value / at.at(-1)];
    }
    const positive = values.filter((value) => value > 0);
    const at = decades(Math.min(this.least, ...positive), highest);
    const [low, range] = [Math.log10(at[0]), Math.log10(at.at(-1) / at[0])];
    return [at, (value) => (Math.log10(Math.max(value, at[0])) - low) / range];
  }

  /** Labels of the time axis: age, text and alignment. */
  moments(count) {
    return Array.from({ length: count + 1 }, (_, at) => {
      const ago = (at * this.seconds) / count;
      const number = this.seconds > 120 ? ago / 60 : ago, unit = this.seconds > 120 ? "min" : "s";
      if (at === 0) return [ago, "now", "end"];
      return at === count ? [ago, `${number} ${unit} ago`, "start"] : [ago, `${number}`, "middle"];
    });
  }

  draw() {
    const width = this.place.clientWidth, height = width < 420 ? 150 : 180;
    if (width < 100 || this.times.length === 0) return;
    const [wide, high] = [width - LEFT - RIGHT, height - TOP - BOTTOM];
    const now = this.times.at(-1);
    const [at, share] = this.axis();
    const x = (time) => LEFT + wide * (1 - (now - time) / this.seconds);
    const y = (value) => TOP + high * (1 - share(value));
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.drawing.setAttribute("height", height);
    const parts = at.flatMap((value, index) => [
      svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value),
        class: index === 0 ? "floor" : "gridline" }),
      svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, this.tick(value)),
    ]);
    parts.push(...this.moments(wide < 480 ? 2 : PARTS[this.seconds]).map(([ago, words, anchor]) =>
      svg("text", { x: x(now - ago), y: height - 5, "text-anchor": anchor }, words)));
    this.series.forEach(({ colour, dash }, index) => {
      const d = path(this, index, x, y);
      const line = { class: "series", stroke: `var(${colour})`, "stroke-dasharray": dash ?? "none" };
      parts.push(svg("path", { ...line, d }));
    });
    if (this.at >= 0) {
      const place = x(this.times[this.at]);
      parts.push(svg("line", { class: "cursor", x1: place, x2: place, y1: TOP, y2: TOP + high }));
    }
    this.drawing.replaceChildren(...parts);
    const shown = this.at >= 0 ? this.at : this.times.length - 1;
    const words = this.lines.map((line) => this.format(line[shown]));
    words.forEach((word, index) => (this.values[index].textContent = word));
    const values = this.series.map(({ name }, index) => `${name} ${words[index]}`).join(", ");
    this.drawing.setAttribute("aria-label", `${this.title}: now ${values}`);
  }
}

/** A line that is broken where a value is missing, or where there were no samples for a while. */
function path({ times, spans, lines }, index, x, y) {
  let d = "", last = null;
  lines[index].forEach((value, at) => {
    if (value === null || !Number.isFinite(value)) return void (last = null);
    const joined = last !== null && times[at] - last < Math.max(3, 2.5 * spans[at]);
    const place = `${x(times[at]).toFixed(1)} ${y(value).toFixed(1)}`;
    // A point without neighbours is a dot: a line of no length with round ends.
    d += joined ? `L${place}` : `M${place}h.01`;
    last = times[at];
  });
  return d;
}

/** States of cells: label and colour. */
export const STATES = {
  host: ["host data", "--c0"],
  moved: ["moved by garbage collection", "--c2"],
  meta: ["checkpoints", "--c3"],
  open: ["being filled", "--c1"],
  stuck: ["cannot be emptied", "--c5"],
  free: ["free", "--free"],
};

/** The segments as cells: colour is the state, intensity the live share. A slider for the keyboard. */
export class SegmentMap {
  constructor(canvas, words) {
    Object.assign(this, { canvas, words, at: null });
    canvas.addEventListener("pointermove", (event) => this.select(this.hit(event)));
    canvas.addEventListener("pointerdown", (event) => this.select(this.hit(event)));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.select(this.at ?? 0));
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  update(map) {
    this.map = map;
    this.canvas.setAttribute("aria-valuemax", Math.max(0, map.cells.length - 1));
    this.draw();
    if (this.at !== null) this.select(Math.min(this.at, map.cells.length - 1));
  }

  /** The layout of the cells on the canvas. */
  layout() {
    const width = this.canvas.parentElement.clientWidth, count = this.map.cells.length;
    // As large as fits in a height of about 200 pixels, from 7 to 22 pixels.
    const fit = Math.floor(Math.sqrt((width * 200) / Math.max(count, 1)));
    const size = Math.max(7, Math.min(22, fit));
    const columns = Math.max(1, Math.floor(width / size));
    return { size, columns, rows: Math.ceil(count / columns), width };
  }

  draw() {
    if (!this.map) return;
    const { size, columns, rows, width } = this.layout();
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = width * scale;
    this.canvas.height = rows * size * scale;
    this.canvas.style.height = `${rows * size}px`;
    const pen = this.canvas.getContext("2d");
    const style = getComputedStyle(this.canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    const colours = Object.fromEntries(
      Object.entries(STATES).map(([state, [, name]]) => [state, colour(name)]));
    const empty = colour("--free");
    pen.scale(scale, scale);
    this.map.cells.forEach(([state, live], at) => {
      const [x, y] = [(at % columns) * size, Math.floor(at / columns) * size];
      pen.globalAlpha = 1;
      pen.fillStyle = empty;
      pen.fillRect(x, y, size - 1, size - 1);
      if (state === "free") return;
      pen.globalAlpha = 0.3 + 0.7 * (live / 100);
      pen.fillStyle = colours[state];
      pen.fillRect(x, y, size - 1, size - 1);
    });
    pen.globalAlpha = 1;
    if (this.at !== null) {
      pen.strokeStyle = colour("--ink");
      pen.lineWidth = 2;
      const [x, y] = [(this.at % columns) * size, Math.floor(this.at / columns) * size];
      pen.strokeRect(x, y, size - 1, size - 1);
    }
  }

  hit(event) {
    if (!this.map) return null;
    const { size, columns } = this.layout();
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / size);
    const at = Math.floor((event.clientY - box.top) / size) * columns + column;
    return column < columns && at >= 0 && at < this.map.cells.length ? at : this.at;
  }

  key(event) {
    if (!this.map) return;
    const { columns } = this.layout(), last = this.map.cells.length - 1, at = this.at ?? 0;
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - columns,
      ArrowDown: at + columns, Home: 0, End: last, PageUp: at - 10 * columns,
      PageDown: at + 10 * columns };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.select(Math.max(0, Math.min(last, moves[event.key])));
  }

  select(at) {
    if (!this.map || at === null) return;
    this.at = at;
    const [state, live] = this.map.cells[at], each = this.map.segments_per_cell;
    const first = at * each, last = Math.min(first + each, this.map.segment_count) - 1;
    const which = first === last ? `Segment ${first}` : `Segments ${first} to ${last}`;
    const text = `${which}: ${STATES[state][0]}${state === "free" ? "" : `, ${live} % live`}`;
    this.words.textContent = text;
    this.canvas.setAttribute("aria-valuenow", at);
    this.canvas.setAttribute("aria-valuetext", text);
    this.draw();
  }
}

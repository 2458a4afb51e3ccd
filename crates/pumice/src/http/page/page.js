// The page: requests a snapshot once a second while it is visible, keeps the last minutes, and
// updates the figures. Requests nothing while it is hidden or paused.

import { html, LineChart, SegmentMap, STATES } from "./chart.js";
import * as figures from "./figures.js";

const PERIOD_MS = 1000, RETRY_MS = 2000, HISTORY = 300;
/** Seconds over which tiles and latencies are averaged. */
const TILE_SECONDS = 5, LATENCY_SECONDS = 30;
/** Requested with every n-th snapshot. */
const MAP_EVERY = 3;

const $ = (id) => document.getElementById(id);
const put = (id, text) => {
  if ($(id).textContent !== text) $(id).textContent = text;
};

let history = [], chosen = null, paused = false, timer = null, asked = 0, asking = false;

const megabytes = (value) => (value === null ? "–" : `${figures.short(value / 1e6)} MB/s`);
const plain = (value) => figures.short(value);
const seconds = (value) => (value === null ? "–" : figures.latency(value).join(" "));
const speed = { format: megabytes, tick: (value) => figures.tick(value / 1e6), least: 1e6 };

const charts = {
  bytes: new LineChart($("chart-bytes"), { ...speed, title: "Bytes written a second, in MB/s",
    series: [
      { name: "host", colour: "--c0" },
      { name: "compressed", colour: "--c2", dash: "2 3" },
      { name: "medium", colour: "--c5", dash: "7 3" },
    ] }),
  stored: new LineChart($("chart-stored"), { title: "Stored fraction of what the host writes",
    series: [{ name: "stored fraction", colour: "--c2" }], format: plain, tick: figures.tick, least: 1 }),
  wa: new LineChart($("chart-wa"), { title: "Write amplification: media bytes over host bytes",
    series: [{ name: "write amplification", colour: "--c5" }], format: plain, tick: figures.tick, least: 1 }),
  requests: new LineChart($("chart-requests"), { title: "Requests a second",
    series: [
      { name: "reads", colour: "--c0" },
      { name: "writes", colour: "--c5", dash: "7 3" },
    ],
    format: (value) => (value === null ? "–" : `${figures.short(value)}/s`), tick: figures.tick, least: 10 }),
  latency: new LineChart($("chart-latency"), { title: "Latency of reads and writes, logarithmic",
    series: [
      { name: "read p50", colour: "--c0", dash: "2 3" },
      { name: "read p99", colour: "--c0" },
      { name: "write p50", colour: "--c5", dash: "2 3" },
      { name: "write p99", colour: "--c5" },
    ],
    format: seconds, tick: (value) => figures.latency(value).map((part) => part.replace(/\.0+$/, "")).join(" "),
    least: 1e-5, log: true }),
  gc: new LineChart($("chart-gc"), { ...speed, title: "Written by garbage collection and checkpoints, in MB/s",
    series: [
      { name: "moved", colour: "--c2" },
      { name: "checkpoints", colour: "--c3", dash: "7 3" },
    ] }),
};
const map = new SegmentMap($("map"), $("cell"));
for (const [state, [words]] of Object.entries(STATES)) {
  $("map-key").append(html("div", {}, html("dt", { class: `swatch-${state}` }, words)));
}
$("map-key").append(html("div", {}, html("dd", {}, "paler: less live data")));

/** The snapshot of the chosen drive. */
function sample(snapshot) {
  const names = snapshot.drives.map((drive) => drive.name);
  choices(names);
  if (!names.includes(chosen)) chosen = names[0];
  const drive = snapshot.drives.find((one) => one.name === chosen);
  return { ...snapshot, drive, time: snapshot.now_ns / 1e9 };
}

function choices(names) {
  const select = $("drive");
  const shown = [...select.options].map((option) => option.value);
  if (shown.join("\n") === names.join("\n")) return;
  select.replaceChildren(...names.map((name) => html("option", { value: name }, name)));
  $("drive-choice").hidden = names.length < 2;
}

/** The rates over about the last `span` seconds. */
function over(span) {
  const now = history.at(-1);
  const then = history.find((one) => one.time >= now.time - span - 0.5);
  return then && then !== now ? figures.rates(now, then) : null;
}

function show() {
  const now = history.at(-1), { drive } = now, { info } = drive;
  put("drive-name", drive.name);
  const codec = info.codec === "store" ? "not compressed" : info.codec;
  put("facts", `${figures.bytes(info.size_bytes)} disk on ${figures.bytes(info.capacity_bytes)}, ` +
    `${codec}, ${info.uuid}`);
  put("version", `Pumice ${now.version}, up for ${figures.span(now.time)}, ` +
    `${now.connections.open} NBD ${now.connections.open === 1 ? "client" : "clients"}`);
  alerts(drive.overview.alerts);
  tiles(drive, over(TILE_SECONDS));
  lines();
  commands(drive, over(LATENCY_SECONDS));
  space(drive);
  collection(drive, over(TILE_SECONDS));
  attributes(now);
}

const ALERTS = { poisoned: "Medium failed.", full: "Full.", damage: "Damage.", space: "Space." };

function alerts(list) {
  const failing = list.some((one) => one.refuses_writes);
  state(failing ? "refuses writes" : list.length > 0 ? "needs attention" : "healthy",
    list.length > 0 ? "bad" : "good");
  say(list.map(({ kind, what }) => [ALERTS[kind] ?? kind, what]));
}

/** Announced by screen readers, so updated only when the text changes. */
function say(lines) {
  const text = lines.flat().join("\n");
  if ($("alerts").dataset.text === text) return;
  $("alerts").dataset.text = text;
  $("alerts").replaceChildren(...lines.map(([head, words]) => {
    const sentence = words.charAt(0).toUpperCase() + words.slice(1);
    return html("li", {}, html("strong", {}, head), sentence);
  }));
  $("warnings").hidden = lines.length === 0;
}

function state(words, kind) {
  put("state", words);
  $("state").className = `pill ${kind}`;
}

function tiles({ info }, rate) {
  const mega = (value) => (rate ? figures.short(value / 1e6) : "–");
  put("host-write", mega(rate?.host));
  put("media-write", mega(rate?.media));
  put("host-read", mega(rate?.read));
  put("iops", rate ? figures.short(rate.requests) : "–");
  put("stored-now", figures.short(rate?.stored ?? null));
  put("wa-now", figures.short(rate?.amplification ?? null));
  put("stored-life", info.host_bytes > 0 ? `lifetime ${figures.short(info.stored_fraction)}` : "");
  put("wa-life", info.host_bytes > 0 ? `lifetime ${figures.short(info.write_amplification)}` : "");
  const p99 = rate ? figures.quantile(rate.commands.write.latency, 0.99) : null;
  const [value, unit] = figures.latency(p99);
  put("write-p99", value);
  put("write-p99-unit", unit);
  put("used", info.used_percent.toFixed(1));
}

function lines() {
  const times = history.map((one) => one.time);
  const line = (pick) => history.map((one) => (one.rate ? pick(one.rate) : null));
  const part = (name, share) => line((rate) => figures.quantile(rate.commands[name].latency, share));
  charts.bytes.update(times,
    [line((rate) => rate.host), line((rate) => rate.frames), line((rate) => rate.media)]);
  charts.stored.update(times, [line((rate) => rate.stored)]);
  charts.wa.update(times, [line((rate) => rate.amplification)]);
  charts.requests.update(times,
    ["read", "write"].map((name) => line((rate) => rate.commands[name].requests)));
  charts.latency.update(times,
    [part("read", 0.5), part("read", 0.99), part("write", 0.5), part("write", 0.99)]);
  charts.gc.update(times, [line((rate) => rate.moved), line((rate) => rate.meta)]);
}

/** Rows of a table: a head and cells, each with its class. */
function rows(id, list) {
  const made = list.map(([head, ...cells]) => html("tr", {}, html("th", { scope: "row" }, head),
    ...cells.map(([text, kind]) => html("td", { class: kind }, text))));
  const body = $(id).tBodies[0];
  const text = JSON.stringify(list);
  if (body.dataset.text === text) return;
  body.dataset.text = text;
  body.replaceChildren(...made);
}

function commands({ host }, rate) {
  rows("commands", figures.COMMANDS.map((name) => {
    const all = host[name], now = rate?.commands[name];
    const at = (share) => (now ? seconds(figures.quantile(now.latency, share)) : "–");
    const failed = all.errors.reduce((sum, [, count]) => sum + count, 0);
    const cells = [now ? figures.short(now.requests) : "–",
      now ? figures.short(now.bytes / 1e6) : "–", at(0.5), at(0.99),
      figures.whole(figures.count(all.latency)), figures.whole(failed)];
    return [name.replace("_", "-"), ...cells.map((text) => [text, "r"])];
  }));
}

function space({ overview, info }) {
  const parts = ["live", "dead", "free", "reserve"].map((name) => [name, overview[`${name}_bytes`]]);
  const share = (value) => (100 * value) / Math.max(1, info.capacity_bytes);
  if ($("space-bar").childElementCount === 0) {
    for (const [name] of parts) {
      $("space-bar").append(html("i", { class: `swatch-${name}` }));
      const words = { live: "live", dead: "dead, to be collected", free: "free for data",
        reserve: "free, kept in reserve" }[name];
      $("space").append(html("div", {}, html("dt", { class: `swatch-${name}` }, words), html("dd")));
    }
  }
  parts.forEach(([, value], at) => {
    $("space-bar").children[at].style.width = `${share(value)}%`;
    const text = `${figures.bytes(value)} (${share(value).toFixed(1)} %)`;
    $("space").children[at].lastChild.textContent = text;
  });
  const words = parts.map(([name, value]) => `${name} ${share(value).toFixed(0)} %`).join(", ");
  $("space-bar").setAttribute("aria-label", `Use of the capacity: ${words}`);
}

function collection({ info, overview }, rate) {
  const list = [
    ["State", overview.gc_debt_segments > 0 ? `active, ${overview.gc_debt_segments} segments to free` : "idle"],
    ["Segments freed", figures.whole(info.operations.gc_victims)],
    ["Moved in total", figures.bytes(info.moved_bytes)],
    ["Moved now", rate ? megabytes(rate.moved) : "–"],
    ["Checkpoints", figures.whole(info.operations.checkpoints)],
    ["Free segments", `${figures.whole(info.free_segments)} of ${figures.whole(info.segment_count)}`],
  ];
  if ($("gc").childElementCount !== list.length) {
    $("gc").replaceChildren(...list.map(([name]) => html("div", {}, html("dt", {}, name), html("dd"))));
  }
  list.forEach(([, value], at) => {
    const place = $("gc").children[at].lastChild;
    if (place.textContent !== value) place.textContent = value;
  });
}

/** The used share of the rated endurance, and how long the rest lasts. */
function endurance({ drive, time }) {
  const { info, rated_write_bytes: rated } = drive;
  if (!rated) {
    const how = "Start the server with --rated-tbw to set it.";
    return [["Percentage used", ["unknown", "r"], [how, ""]],
      ["Life left", ["unknown", "r"], ["The rated endurance of the medium is unknown.", ""]]];
  }
  const used = (100 * info.media_bytes) / rated;
  const rate = (info.media_bytes - drive.media_bytes_at_start) / Math.max(time, 1);
  const left = Math.max(0, rated - info.media_bytes);
  const known = time >= 60 && rate > 0;
  return [
    ["Percentage used", [`${used.toFixed(used < 10 ? 3 : 1)} %`, "r"],
      [`Of the rated ${figures.bytes(rated)}, without the medium's own write amplification.`, ""]],
    ["Life left", [known ? figures.span(left / rate) : "not yet known", "r"],
      ["At the write rate since the server started.", ""]],
  ];
}

function attributes(now) {
  const { drive } = now, { info } = drive, life = "Over the drive's life.";
  const written = info.created_seconds > 0
    ? new Date(info.created_seconds * 1000).toISOString().slice(0, 10) : "unknown";
  const scrub = info.scrub_running ? `running, ${info.scrub_segments_done} of ${info.scrub_segments} segments`
    : info.scrub_segments > 0 ? `${info.scrub_problems} problems` : "none yet";
  rows("attributes", [
    ["Host bytes written", [figures.bytes(info.host_bytes), "r"], [life, ""]],
    ["Media bytes written", [figures.bytes(info.media_bytes), "r"], [life, ""]],
    ["Write amplification", [figures.short(info.write_amplification), "r"], ["Media bytes divided by host bytes.", ""]],
    ["Stored fraction", [figures.short(info.stored_fraction), "r"], ["Compressed bytes divided by host bytes.", ""]],
    ...endurance(now),
    ["Space left", [`${Math.max(0, 100 - info.used_percent).toFixed(1)} %`, "r"], ["Of the capacity for data.", ""]],
    ["Openings", [figures.whole(info.epoch), "r"], ["Times the drive was opened for writing.", ""]],
    ["Last shutdown", [info.was_clean ? "clean" : "crash", "r"], ["How the previous opening ended.", ""]],
    ["Created", [written, "r"], ["", ""]],
    ["Damaged reads", [figures.whole(info.operations.corrupt_reads), "r"], ["Since the server started.", ""]],
    ["Last scrub", [scrub, "r"], ["Since the server started; `pumice scrub` starts one.", ""]],
  ]);
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(5000) });
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({}));
    throw new Error(error ?? `HTTP status ${answer.status}`);
  }
  return answer.json();
}

async function step() {
  timer = null;
  if (asking) return;
  asking = true;
  let wait = PERIOD_MS;
  const began = performance.now();
  try {
    const now = sample(await ask("api/snapshot"));
    const before = history.at(-1);
    // After a restart, or for another drive, clock or counters start again.
    if (before && (before.time >= now.time || before.drive.name !== chosen)) history = [];
    const last = history.at(-1);
    now.rate = last && now.time - last.time < 3 ? figures.rates(now, last) : null;
    history.push(now);
    if (history.length > HISTORY) history.shift();
    if (asked++ % MAP_EVERY === 0) {
      const cells = window.innerWidth < 600 ? 512 : 1024;
      map.update(await ask(`api/drives/${encodeURIComponent(chosen)}/segments?cells=${cells}`));
    }
    show();
  } catch (error) {
    wait = RETRY_MS;
    state("no answer", "bad");
    say([["No answer.", `${error.message}: showing the last known figures.`]]);
  }
  asking = false;
  schedule(Math.max(100, wait - (performance.now() - began)));
}

/** Schedules the next step, unless the page is hidden or paused. */
function schedule(wait) {
  clearTimeout(timer);
  timer = null;
  if (!paused && document.visibilityState === "visible") timer = setTimeout(step, wait);
}

document.addEventListener("visibilitychange", () => schedule(0));
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Resume" : "Pause";
  schedule(0);
});
$("drive").addEventListener("change", (event) => {
  [chosen, history, asked] = [event.target.value, [], 0];
  schedule(0);
});
schedule(0);

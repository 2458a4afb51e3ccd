// The page: requests a snapshot once a second while it is visible, and updates the figures. Starts
// with the worst drive, or the one that its address names, and with the last hour as recorded by the
// server. Requests nothing while it is hidden or paused.

import { html, LineChart, SegmentMap, STATES } from "./chart.js";
import { Drives } from "./drives.js";
import * as figures from "./figures.js";
import { Past } from "./past.js";

const PERIOD_MS = 1000, RETRY_MS = 2000;
/** Seconds over which tiles and latencies are averaged. */
const TILE_SECONDS = 5, LATENCY_SECONDS = 30;
/** Requested with every n-th snapshot. */
const MAP_EVERY = 3, PAST_EVERY = 60, RETAINED_EVERY = 10;
/** Rows of the table of snapshots. */
const RETAINED_MAX = 12;
/** Spans of the charts in seconds; the first is the default. */
const SPANS = ["300", "3600"];

const $ = (id) => document.getElementById(id);
const put = (id, text) => {
  if ($(id).textContent !== text) $(id).textContent = text;
};

/** The parameters in the address of the page: the drive and the span of the charts. */
const address = new URLSearchParams(location.search);
let chosen = address.get("drive"), span = SPANS.find((one) => one === address.get("span")) ?? SPANS[0];
/** Snapshots of the chosen drive, and the newest of all. */
let samples = [], newest = null;
/** Its snapshots. */
let retained = [];
let paused = false, timer = null, asked = 0, asking = false;
const past = new Past();

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
  stored: new LineChart($("chart-stored"), { title: "Stored fraction of the bytes written by the host",
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
    format: seconds, tick: figures.latencyTick,
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
$("map-key").append(html("div", {}, html("dd", {}, "fainter: less live data")));

const drives = new Drives($("drives"), $("drive"), (name) => {
  chosen = name;
  keepAddress();
  forget();
  schedule(0);
});

/** The address of the page with a drive. */
function addressOf(drive) {
  const words = new URLSearchParams();
  if (drive) words.set("drive", drive);
  if (span !== SPANS[0]) words.set("span", span);
  const text = words.toString();
  return text ? `?${text}` : location.pathname;
}

const keepAddress = () => history.replaceState(null, "", addressOf(chosen));

/** Discards all points: for another drive, or after a restart of the server. */
function forget() {
  [samples, retained, asked] = [[], [], 0];
  past.clear();
}

/** Adds the snapshot of the chosen drive; returns whether there is one. */
function take(snapshot) {
  const find = (name) => snapshot.drives.find((one) => one.name === name);
  const drive = find(chosen) ?? find(Drives.first(snapshot));
  if (!drive) return false;
  const now = { now_ns: snapshot.now_ns, drive, time: snapshot.now_ns / 1e9 };
  const before = samples.at(-1);
  // After a restart, or for another drive, the clock or the counters start again.
  if (before && (before.time >= now.time || before.drive.name !== drive.name)) forget();
  chosen = drive.name;
  const last = samples.at(-1);
  past.add(now.time, last && now.time - last.time < 3 ? figures.rates(now, last) : null);
  samples.push(now);
  while (samples[0].time < now.time - LATENCY_SECONDS - 1) samples.shift();
  return true;
}

/** The rates over about the last `seconds`. */
function over(seconds) {
  const now = samples.at(-1);
  const then = samples.find((one) => one.time >= now.time - seconds - 0.5);
  return then && then !== now ? figures.rates(now, then) : null;
}

function show(snapshot) {
  const now = samples.at(-1), { drive } = now, { info } = drive;
  put("drive-name", drive.name);
  const codec = info.codec === "store" ? "not compressed" : info.codec;
  put("facts", `${figures.bytes(info.size_bytes)} disk on ${figures.bytes(info.capacity_bytes)}, ` +
    `${codec}, ${info.uuid}`);
  const { open } = snapshot.connections;
  put("version", `Pumice ${snapshot.version}, up for ${figures.span(now.time)}, ` +
    `${open} NBD ${open === 1 ? "client" : "clients"}`);
  alerts(snapshot);
  drives.update(snapshot, chosen, figures.speeds(snapshot, newest), addressOf);
  tiles(drive, over(TILE_SECONDS));
  lines();
  commands(drive, over(LATENCY_SECONDS));
  space(drive);
  snapshots(drive);
  collection(drive, over(TILE_SECONDS));
  attributes(now);
}

const ALERTS = {
  poisoned: "Medium failed.",
  full: "Full.",
  misplaced: "File gone.",
  degraded: "Degraded.",
  damage: "Damage.",
  space: "Space.",
};

/** Alerts of other drives that are shown; the table has the rest. */
const OTHERS_MAX = 4;

function alerts({ drives, silent }) {
  const list = drives.find((one) => one.name === chosen)?.overview.alerts ?? [];
  const badness = figures.badness(list);
  state(["healthy", "needs attention", "refuses writes"][badness], badness > 0 ? "bad" : "good");
  const lines = list.map(({ kind, what }) => [ALERTS[kind] ?? kind, what]);
  const others = silent.map((name) => [`${name}: no answer.`, "Its thread does not answer in time."]);
  for (const { name, overview } of drives) {
    const worst = overview.alerts.find((one) => one.refuses_writes);
    if (worst && name !== chosen) others.push([`${name}: ${ALERTS[worst.kind] ?? worst.kind}`, worst.what]);
  }
  const left = others.length - OTHERS_MAX;
  if (left > 0) others.splice(OTHERS_MAX, left, [`${left} more drives.`, "The table below names them."]);
  say([...lines, ...others]);
}

/** Announced by screen readers, so updated only when the text changes. */
function say(lines) {
  const text = lines.flat().join("\n");
  if ($("alerts").dataset.text === text) return;
  $("alerts").dataset.text = text;
  $("alerts").replaceChildren(...lines.map(([head, words]) => {
    const sentence = words.charAt(0).toUpperCase() + words.slice(1);
    // Commands are between backticks.
    const parts = sentence.split("`").map((part, at) => at % 2 === 1 ? html("code", {}, part) : part);
    return html("li", {}, html("strong", {}, head), ...parts);
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
  const saved = figures.saved(info);
  put("saved", saved ? saved[0] : "–");
  put("saved-bytes", saved ? `${figures.bytes(saved[1])} of its data` : "no data yet");
}

function lines() {
  const points = past.points(Number(span));
  const times = points.map((one) => one.time), spans = points.map((one) => one.span);
  const show = (chart, ...fields) =>
    chart.update(times, spans, fields.map((field) => points.map((one) => one[field] ?? null)));
  show(charts.bytes, "host", "frames", "media");
  show(charts.stored, "stored");
  show(charts.wa, "amplification");
  show(charts.requests, "reads", "writes");
  show(charts.latency, "read_p50", "read_p99", "write_p50", "write_p99");
  show(charts.gc, "moved", "meta");
}

/** Rows of a table: a head and cells, each with its class. Narrow windows show column heads by cell. */
function rows(id, list) {
  const heads = [...$(id).tHead.rows[0].cells].slice(1).map((head) => head.textContent);
  const made = list.map(([head, ...cells]) => html("tr", {}, html("th", { scope: "row" }, head),
    ...cells.map(([text, kind], at) => html("td", { class: kind, "data-head": heads[at] }, text))));
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

function snapshots({ info }) {
  const count = info.snapshots;
  $("snapshots").hidden = count === 0;
  if (count === 0) return;
  const some = count === 1 ? "1 snapshot retains" : `${figures.whole(count)} snapshots retain`;
  const oldest = figures.moment(info.snapshot_oldest_seconds);
  const clones = info.clones > 0 ? ` Clones that read from them: ${figures.whole(info.clones)}.` : "";
  const most = count > RETAINED_MAX ? ` The ${RETAINED_MAX} that retain most:` : "";
  put("snapshots-sum",
    `${some} ${figures.bytes(info.snapshot_bytes)} beyond the disk, the oldest taken ${oldest}.${clones}${most}`);
  const bytes = (one) => one.alone_bytes + one.shared_bytes;
  const shown = [...retained].sort((a, b) => b.alone_bytes - a.alone_bytes || bytes(b) - bytes(a))
    .slice(0, RETAINED_MAX).sort((a, b) => b.sequence - a.sequence);
  rows("retained", shown.map((one) => [
    one.name + (one.is_bookmark ? " (bookmark)" : "") + (one.damage ? " (damaged)" : ""),
    [figures.moment(one.created_seconds), ""],
    ...[one.live_bytes, one.alone_bytes, one.shared_bytes].map((value) => [figures.bytes(value), "r"]),
  ]));
}

const segments = (count) => `${figures.whole(count)} segment${count === 1 ? "" : "s"}`;

function collection({ info, overview }, rate) {
  const list = [
    ["State", overview.gc_debt_segments > 0 ? `active, ${segments(overview.gc_debt_segments)} to free` : "idle"],
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
  const written = figures.moment(info.created_seconds, 10);
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
    const snapshot = await ask("api/snapshot");
    if (!take(snapshot)) throw new Error("no drive answers");
    const path = `api/drives/${encodeURIComponent(chosen)}`;
    if (asked % PAST_EVERY === 0) past.keep(await ask(`${path}/history`));
    const count = samples.at(-1).drive.info.snapshots;
    if (asked % RETAINED_EVERY === 0 || count !== samples.at(-2)?.drive.info.snapshots) {
      retained = count > 0 ? await ask(`${path}/snapshots`) : [];
    }
    if (asked++ % MAP_EVERY === 0) {
      const cells = window.innerWidth < 600 ? 512 : 1024;
      map.update(await ask(`${path}/segments?cells=${cells}`));
    }
    show(snapshot);
    newest = snapshot;
  } catch (error) {
    wait = RETRY_MS;
    state("no answer", "bad");
    document.title = "(no answer) Pumice";
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

/** Continues after a pause: the server has recorded the missed points. */
function resume() {
  asked = 0;
  schedule(0);
}

document.addEventListener("visibilitychange", resume);
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Resume" : "Pause";
  resume();
});
$("span").value = span;
$("span").addEventListener("change", (event) => {
  span = event.target.value;
  keepAddress();
  if (samples.length > 0) lines();
});
schedule(0);

// Numbers from snapshots: rates between two of them, quantiles and formatting. Pure: independent of
// the page.

/** Latency buckets, as on the server: bucket n ends at 2^n microseconds; one more is open. */
const BUCKETS = 25;

/** The command names, in the order in which they are shown. */
export const COMMANDS = ["read", "write", "flush", "trim", "write_zeroes", "cache"];

/** Requests of a command, or of all. */
export const count = (latency) => latency.counts.reduce((sum, one) => sum + one, 0);

/** The difference of two latencies of the same command. */
export function since(later, earlier) {
  return { counts: later.counts.map((one, at) => Math.max(0, one - earlier.counts[at])) };
}

/** The latency in seconds that `share` of the requests did not exceed, or null without requests. */
export function quantile(latency, share) {
  const rank = share * count(latency);
  let below = 0;
  for (let at = 0; at <= BUCKETS; at++) {
    const here = latency.counts[at];
    if (here > 0 && below + here >= rank) {
      const upper = 2 ** Math.min(at, BUCKETS - 1) / 1e6;
      const lower = at === 0 ? 0 : at === BUCKETS ? upper : upper / 2;
      return lower + (upper - lower) * ((rank - below) / here);
    }
    below += here;
  }
  return null;
}

/**
 * What happened to a drive between two snapshots, by second; null if they are not of one life of
 * the server.
 */
export function rates(later, earlier) {
  const seconds = (later.now_ns - earlier.now_ns) / 1e9;
  if (!(seconds > 0)) return null;
  const [now, then] = [later.drive, earlier.drive];
  const per = (pick) => Math.max(0, pick(now) - pick(then)) / seconds;
  const commands = {};
  for (const name of COMMANDS) {
    const latency = since(now.host[name].latency, then.host[name].latency);
    commands[name] = {
      requests: count(latency) / seconds,
      bytes: per((drive) => drive.host[name].bytes),
      latency,
    };
  }
  const rate = {
    seconds,
    host: per((drive) => drive.info.host_bytes),
    frames: per((drive) => drive.info.frame_bytes),
    media: per((drive) => drive.info.media_bytes),
    moved: per((drive) => drive.info.moved_bytes),
    meta: per((drive) => drive.info.operations.meta_bytes),
    victims: per((drive) => drive.info.operations.gc_victims),
    read: commands.read.bytes,
    requests: COMMANDS.reduce((sum, name) => sum + commands[name].requests, 0),
    commands,
  };
  const telling = enough(rate.host, seconds);
  rate.stored = telling ? rate.frames / rate.host : null;
  rate.amplification = telling ? rate.media / rate.host : null;
  return rate;
}

/** A handful of writes does not show how well data compresses. */
const enough = (bytesPerSecond, seconds) => bytesPerSecond * seconds >= 65536;

/** The point of the charts at one moment; `rate` is as returned by `rates`, or null. */
export function point(time, rate) {
  if (!rate) return { time, span: 0 };
  const { read, write } = rate.commands;
  return {
    time, span: rate.seconds, host: rate.host, frames: rate.frames, media: rate.media,
    stored: rate.stored, amplification: rate.amplification, moved: rate.moved, meta: rate.meta,
    reads: read.requests, writes: write.requests,
    read_p50: quantile(read.latency, 0.5), read_p99: quantile(read.latency, 0.99),
    write_p50: quantile(write.latency, 0.5), write_p99: quantile(write.latency, 0.99),
  };
}

/** The points of a server's history. */
export function points({ period, fields, points }) {
  return points.map(([time, values]) => {
    const point = { time, span: period };
    fields.slice(1).forEach((field, at) => (point[field] = values[at]));
    const telling = enough(point.host, period);
    point.stored = telling ? point.frames / point.host : null;
    point.amplification = telling ? point.media / point.host : null;
    return point;
  });
}

/** The badness of a drive: 2 if it refuses writes, 1 if something else is wrong. */
export function badness(alerts) {
  return alerts.some((one) => one.refuses_writes) ? 2 : alerts.length > 0 ? 1 : 0;
}

/** The saving of a drive: the ratio and the bytes, or null. */
export function saved({ mapped_bytes: mapped, live_bytes: stored }) {
  if (!(mapped > 0 && stored > 0)) return null;
  const ratio = mapped / stored;
  return [ratio >= 1000 ? "over 1000x" : `${ratio.toFixed(1)}x`, Math.max(0, mapped - stored)];
}

/** The write and read rates of each drive between two snapshots, in bytes per second, by name. */
export function speeds(later, earlier) {
  const speeds = new Map(), seconds = (later.now_ns - (earlier?.now_ns ?? 0)) / 1e9;
  if (!earlier || !(seconds > 0)) return speeds;
  const before = new Map(earlier.drives.map((drive) => [drive.name, drive]));
  for (const now of later.drives) {
    const then = before.get(now.name);
    const per = (pick) => Math.max(0, pick(now) - pick(then)) / seconds;
    if (then) {
      speeds.set(now.name, {
        host: per((drive) => drive.info.host_bytes), read: per((drive) => drive.host.read.bytes),
      });
    }
  }
  return speeds;
}

/** A number with about three digits. */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${short(value / 1e6)} M`;
  if (size >= 1e4) return Math.round(value).toLocaleString("en");
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 0.995 || size === 0) return value.toFixed(size === 0 ? 0 : 2);
  return value.toFixed(3);
}

/** A number on an axis: round ones are short. */
export const tick = (value) => (Math.abs(value) >= 1e4 ? short(value) : String(+value.toPrecision(3)));

/** An integer with thousands separators. */
export const whole = (value) => Math.round(value).toLocaleString("en");

/** Bytes as `pumice info` writes them. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) [value, at] = [value / 1024, at + 1];
  return `${at === 0 ? value : value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${units[at]}`;
}

/** A latency: number and unit. */
export function latency(seconds) {
  if (seconds === null) return ["–", ""];
  if (seconds > 0 && seconds < 0.9995e-6) return [short(seconds * 1e9), "ns"];
  if (seconds < 0.9995e-3) return [short(seconds * 1e6), "µs"];
  if (seconds < 0.9995) return [short(seconds * 1e3), "ms"];
  return [short(seconds), "s"];
}

/** A latency on an axis, at most six characters long. */
export const latencyTick = (seconds) =>
  latency(seconds).map((part) => part.replace(/\.0+$/, "")).join(" ");

/** A human-readable duration. */
export function span(seconds) {
  const year = 365.25 * 86400;
  if (seconds >= 1000 * year) return "more than 1,000 years";
  if (seconds >= 2 * year) return `${short(seconds / year)} years`;
  if (seconds >= 2 * 86400) return `${short(seconds / 86400)} days`;
  if (seconds >= 2 * 3600) return `${short(seconds / 3600)} hours`;
  if (seconds >= 120) return `${Math.floor(seconds / 60)} minutes`;
  return `${Math.floor(seconds)} s`;
}

/** The last second of the year 9999: a drive may report any time. */
const LAST_SECOND = 253402300799;

/** A time in UTC to the minute, or its day. */
export function moment(seconds, length = 16) {
  if (!(seconds > 0 && seconds <= LAST_SECOND)) return "unknown";
  return new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, length);
}

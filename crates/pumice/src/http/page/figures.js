// Numbers from snapshots: rates between two of them, quantiles and formatting. Pure: knows no
// page.

/** Latency buckets as the server has them: bucket n ends at 2^n microseconds; one more is open. */
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
  // A handful of writes says nothing about how well data compresses.
  const enough = rate.host * seconds >= 65536;
  rate.stored = enough ? rate.frames / rate.host : null;
  rate.amplification = enough ? rate.media / rate.host : null;
  return rate;
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

/** A number at an axis: round ones are short. */
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
  if (seconds < 0.9995e-3) return [short(seconds * 1e6), "µs"];
  if (seconds < 0.9995) return [short(seconds * 1e3), "ms"];
  return [short(seconds), "s"];
}

/** A length of time for people. */
export function span(seconds) {
  const year = 365.25 * 86400;
  if (seconds >= 1000 * year) return "more than 1,000 years";
  if (seconds >= 2 * year) return `${short(seconds / year)} years`;
  if (seconds >= 2 * 86400) return `${short(seconds / 86400)} days`;
  if (seconds >= 2 * 3600) return `${short(seconds / 3600)} hours`;
  if (seconds >= 120) return `${Math.floor(seconds / 60)} minutes`;
  return `${Math.floor(seconds)} s`;
}

// What the charts show of a drive: the last minutes, second by second, as this page has seen them,
// and before that what the server has kept.

import * as figures from "./figures.js";

/** How far back the points of this page go; older ones are the server's. */
const RECENT_SECONDS = 300;

export class Past {
  constructor() {
    this.clear();
  }

  /** Forgets everything: another drive, or another life of the server. */
  clear() {
    [this.kept, this.recent] = [[], []];
  }

  /** Takes what the server has kept. */
  keep(answer) {
    this.kept = figures.points(answer);
  }

  /** Adds what happened since the last call. */
  add(time, rate) {
    this.recent.push(figures.point(time, rate));
    while (this.recent[0].time < time - RECENT_SECONDS) this.recent.shift();
  }

  /** The points of the last `seconds`, the oldest first. */
  points(seconds) {
    const first = this.recent[0]?.time ?? Infinity;
    const last = this.recent.at(-1)?.time ?? this.kept.at(-1)?.time ?? 0;
    const points = [...this.kept.filter((point) => point.time < first), ...this.recent];
    return points.filter((point) => point.time >= last - seconds);
  }
}

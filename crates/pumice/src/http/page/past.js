// The points of the charts of a drive: the last minutes, second by second, as recorded by this page,
// and before that, as recorded by the server.

import * as figures from "./figures.js";

/** The span of the points of this page; older points are from the server. */
const RECENT_SECONDS = 300;

export class Past {
  constructor() {
    this.clear();
  }

  /** Discards everything: for another drive, or after a restart of the server. */
  clear() {
    [this.kept, this.recent] = [[], []];
  }

  /** Adds the points recorded by the server. */
  keep(answer) {
    this.kept = figures.points(answer);
  }

  /** Adds the point since the last call. */
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

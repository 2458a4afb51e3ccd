// All drives of the server at a glance: a table with a row for each, the worst first, the selection
// of one, and their part of the page title.

import { html } from "./chart.js";
import * as figures from "./figures.js";

/** States by badness: label, mark, class. Silent drives are the worst. */
const STATES = [
  ["healthy", "\u25cf", "good"],
  ["attention", "\u25b2", "bad"],
  ["refuses writes", "\u2716", "bad"],
  ["no answer", "\u2716", "bad"],
];

/** The drives of a snapshot and those that do not answer, with their badness, the worst first. */
function judged({ drives, silent }) {
  const all = drives.map((drive) => ({
    name: drive.name, drive, badness: figures.badness(drive.overview.alerts),
  }));
  all.push(...silent.map((name) => ({ name, drive: null, badness: 3 })));
  return all.sort((one, other) => other.badness - one.badness);
}

/** The part of the title that counts the problems. */
function counted(all) {
  const failing = all.filter(({ badness }) => badness >= 2).length;
  const others = all.filter(({ badness }) => badness === 1).length;
  if (failing > 0) return `(${failing} failing) `;
  return others > 0 ? `(${others} need${others === 1 ? "s" : ""} attention) ` : "";
}

export class Drives {
  /** `choose` is called with the name of the drive that the user chooses. */
  constructor(section, select, choose) {
    Object.assign(this, { section, select, body: section.querySelector("tbody") });
    select.addEventListener("change", () => choose(select.value));
    section.addEventListener("click", (event) => {
      const link = event.target.closest("a[data-drive]");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      choose(link.dataset.drive);
    });
  }

  /** The drive to begin with: the worst of those that answer. */
  static first(snapshot) {
    return judged(snapshot).find(({ drive }) => drive)?.name;
  }

  /** Shows the drives; `speeds` has the rates of each by name, as far as they are known. */
  update(snapshot, chosen, speeds, address) {
    const all = judged(snapshot);
    document.title = `${counted(all)}${chosen} \u2013 Pumice`;
    this.section.hidden = all.length < 2;
    this.select.parentElement.hidden = all.length < 2;
    if (all.length < 2) return;
    this.options(all, chosen);
    const list = all.map(({ name, drive, badness }) =>
      [name, badness, name === chosen, ...cells(drive, speeds.get(name))]);
    const text = JSON.stringify(list);
    if (this.body.dataset.text === text) return;
    this.body.dataset.text = text;
    // The new rows keep the focus.
    const focused = this.body.contains(document.activeElement)
      ? document.activeElement.dataset.drive : null;
    this.body.replaceChildren(...list.map((row) => line(row, address)));
    if (focused) {
      [...this.body.querySelectorAll("a")].find((one) => one.dataset.drive === focused)?.focus();
    }
  }

  options(all, chosen) {
    const list = all.filter(({ drive }) => drive).map(({ name, badness }) =>
      [name, badness > 0 ? `${STATES[badness][1]} ${name}` : name]);
    const text = JSON.stringify([list, chosen]);
    if (this.select.dataset.text === text) return;
    this.select.dataset.text = text;
    this.select.replaceChildren(...list.map(([name, label]) =>
      html("option", { value: name }, label)));
    this.select.value = chosen;
  }
}

/** Figures of a drive as text. */
function cells(drive, speed) {
  if (!drive) return Array(5).fill("\u2013");
  const mega = (value) => (speed ? figures.short(value / 1e6) : "\u2013");
  const saved = figures.saved(drive.info);
  return [figures.bytes(drive.info.mapped_bytes), saved ? saved[0] : "\u2013",
    `${drive.info.used_percent.toFixed(1)} %`, mega(speed?.host), mega(speed?.read)];
}

function line([name, badness, is_chosen, ...texts], address) {
  const [words, mark, kind] = STATES[badness];
  const link = html("a", { href: address(name), "data-drive": name }, name);
  if (is_chosen) link.setAttribute("aria-current", "true");
  const state = html("td", { class: kind }, html("span", { "aria-hidden": "true" }, `${mark} `), words);
  const head = html("th", { scope: "row" }, badness === 3 ? name : link);
  const optional = [true, false, false, true, true];
  return html("tr", is_chosen ? { class: "chosen" } : {}, head, state,
    ...texts.map((text, at) => html("td", { class: optional[at] ? "r more" : "r" }, text)));
}

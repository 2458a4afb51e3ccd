#!/usr/bin/env python3
"""Writes the tables of simulated drives in docs/bench.md and docs/forecast.md, or checks them.

    docs/tables.py PUMICE [--check] [--quick] [NAME...]

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`. The program makes every
number, in virtual time: all machines make the same ones. With --check nothing is written; lines
that differ are printed, and the exit code is 1. With --quick only rows that take seconds in a debug
build are made, and the others stay as they are. Bounds that the text around a table states are
asserted here when its rows are made.
"""

import argparse
import difflib
import functools
import json
import math
import pathlib
import subprocess
import sys

DOCS = pathlib.Path(__file__).parent
END = "<!-- end of table -->"

# Drives with published numbers: those that compress, and the others; with the largest error in per
# cent that a prediction should have.
COMPRESSING = ["micro-center-64", "corsair-force-100", "ocz-agility-2-100", "ocz-vertex-2-50"]
OTHERS = ["intel-x25-e-32", "intel-x25-m-g1-80", "intel-x25-m-g2-160", "indilinx-barefoot-120",
          "samsung-slc-64", "jmicron-jmf602b", "hdd-2010"]
GROUPS = {"all compressing drives": COMPRESSING, "all other drives": OTHERS}
GOALS = {**dict.fromkeys(COMPRESSING, 5), **dict.fromkeys(OTHERS, 20)}

# Why a prediction fails: what only the cell itself tells of the drive.
NOT_KNOWN = {
    ("micro-center-64", "write, 4 KiB"): "the host's link; tPROG, 1.3 or 1.63 ms",
    ("micro-center-64", "write, 1 MiB"): "the host's link; tPROG",
    ("micro-center-64", "random write, 4 KiB"): "the firmware's cap; tPROG",
    ("corsair-force-100", "rewrite, 2 MiB"): "how fast the controller stores; the link",
    ("corsair-force-100", "random write, 4 KiB, depth 3"): "commands a second; rated 50,000",
    ("corsair-force-100", "random read, 4 KiB, depth 3"): "the speed of the flash's bus",
    ("ocz-agility-2-100", "random write, 4 KiB, depth 3"): "the cap, rated 10,000",
    ("ocz-vertex-2-50", "Seq write, 100 MB"): "ECC and metadata, 8.8 or 14 % beside parity",
    ("ocz-vertex-2-50", "Seq write"): "ECC and metadata, 8.8 or 14 % beside parity",
    ("intel-x25-m-g2-160", "rewrite, 2 MiB"): "how fast the controller stores",
    ("indilinx-barefoot-120", "random write, 4 KiB, depth 3"): "the unit of the map",
    ("indilinx-barefoot-120", "random write, 4 KiB, depth 3: mean latency"): "the unit of the map",
    ("indilinx-barefoot-120", "read, 2 MiB"): "the speed of a channel",
    ("indilinx-barefoot-120", "random read, 4 KiB, depth 32"): "the time of a command",
    ("samsung-slc-64", "random write, 4 KiB, depth 3"): "the unit of the map",
    ("jmicron-jmf602b", "random write, 4 KiB, depth 3"): "tPROG",
    ("jmicron-jmf602b", "random write, 4 KiB, depth 3: maximum latency"): "see below",
    ("hdd-2010", "random write, 4 KiB, depth 3"): "how many writes the disk sorts",
}


class Row:
    """All lines of a table that begin with one name, and the function that makes their cells."""

    def __init__(self, name, make, quick=False):
        self.name, self.make, self.quick = name, make, quick


def line(cells):
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def significant(value, unit, digits=4):
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f} {unit}"


def percent(value, decimals=1):
    return f"{round(value, decimals) + 0.0:.{decimals}f} %"


def ms(nanoseconds, decimals=1):
    return f"{nanoseconds / 1e6:.{decimals}f} ms"


def gb(count, decimals=1):
    return f"{count / 1e9:.{decimals}f} GB" if count else "0"


def rate(test, decimals=1):
    return f"{test['all']['mb_per_s']:.{decimals}f} MB/s"


def amplification(test):
    return f"{test['write_amplification']['all']:.3f}"


def failing(workload):
    def make(pumice):
        test = pumice("forecast", "--profile", "ocz-vertex-2-50", "--workload", workload,
                      "--saved", "50%", "--fail", "die:3@50%")["tests"][0]
        drives = [test["drive"], test["uncompressed"], test["without_parity"]]
        rows = {"throughput": [rate(drive) for drive in drives]}
        if workload == "random-write":
            parity = [f"{drive['write_amplification']['parity']:.3f}" for drive in drives]
            rows["write amplification"] = [amplification(drive) for drive in drives]
            rows["parity in it"] = parity[:2] + [""]
            rows["endurance"] = [f"{drive['endurance']['host_bytes'] / 1e12:.0f} TB"
                                 for drive in drives]
            lost = [drive["lost_die"] for drive in drives]
            rows["if a die failed now: lost"] = [gb(die["lost_bytes"]) for die in lost]
            rows["rebuilt"] = [f"{gb(die['rebuilt_bytes'])} in {die['rebuild_seconds']:.0f} s"
                               for die in lost[:2]] + [""]
        failed = [drive["failing"] for drive in drives]
        rows["a die fails in the middle of a round: throughput"] = [rate(drive) for drive in failed]
        if workload == "random-read":
            latencies = [drive["read_latency"] for drive in failed]
            rows["latency, 99 %"] = [f"{it['p99_ns'] / 1e3:.0f} µs" for it in latencies]
            rows["reads that fail"] = [
                f"{drive['unreadable_blocks']:,} of {drive['read_latency']['count']:,}"
                for drive in failed]
        return [[name, *cells] for name, cells in rows.items()]

    return make


def cached(workload, cache):
    def make(pumice):
        options = [] if cache == "none" else ["--cache", cache]
        drive = pumice("forecast", "--profile", "hdd-2010", *options, "--workload", workload,
                       "--span", "32G", "--pattern", "zipf")["tests"][0]["drive"]
        shares = drive["cache"]
        speed = f"{drive['all']['iops']:.0f} /s"
        if workload == "random-read":
            hits = percent(100 * shares["hit_fraction"]) if shares else ""
            return [[speed, hits, ms(drive["read_latency"]["p99_ns"], 0)]]
        if not shares:
            return [[speed, "", ""]]
        past = percent(100 * (shares["past_fraction"] or 0))
        return [[speed, past, gb(shares["dirty_bytes_max"], 2)]]

    return make


def of_size(pumice, size, workload):
    options = ["--full-size"] if size is None else ["--scaled", size]
    return pumice("forecast", "--profile", "micro-center-64", "--workload", workload,
                  "--saved", "50%", *options)["tests"][0]


def scaled(size):
    def make(pumice):
        test = of_size(pumice, size, "random-write")
        cells = []
        for drive in [test["drive"], test["uncompressed"]]:
            latency = drive["write_latency"]
            cells += [amplification(drive), rate(drive, 2), ms(latency["p99_ns"]),
                      ms(latency["max_ns"])]
        return [[*cells, rate(of_size(pumice, size, "random-read")["drive"])]]

    return make


def whole(pumice):
    """The row of the whole drive: throughput and write amplification on 4 GiB are within 1 %."""
    for workload in ["random-write", "random-read"]:
        small, large = [of_size(pumice, size, workload) for size in ["4G", None]]
        for drive in ["drive", "uncompressed"]:
            speeds = [of[drive]["all"]["mb_per_s"] for of in [small, large]]
            assert math.isclose(*speeds, rel_tol=0.01), (workload, drive, speeds)
            if workload == "random-write":
                written = [of[drive]["write_amplification"]["all"] for of in [small, large]]
                assert math.isclose(*written, rel_tol=0.01), (workload, drive, written)
    return scaled(None)(pumice)


def over_provisioned(over):
    """A row of the grid: the formula deviates by less than 2 %."""
    def make(pumice):
        cells = []
        for of in pumice("forecast", "--profile", "micro-center-64", "--workload", "random-write",
                         "--over-provisioning", over, "--saved", "0%,25%,50%,75%,98%")["forecasts"]:
            drive = of["tests"][0]["drive"]
            formula = drive["write_amplification_by_formula"]
            assert math.isclose(drive["write_amplification"]["all"], formula, rel_tol=0.02), over
            cells.append(f"{amplification(drive)} ({formula:.3f}), {rate(drive)}")
        return [cells]

    return make


def published(pumice, drive, *options):
    """The cells of a drive with a published number; effects of the host are no cells."""
    of = pumice("reproduce", drive, *options, "--runs", "1")
    cells = [cell for one in of["experiments"] for cell in one["cells"]]
    return [cell for cell in cells if cell["published"] is not None and cell["basis"] != "host"]


def fitted(pumice, drive):
    return [cell for cell in published(pumice, drive) if cell["basis"] == "calibrated"]


def left_out(pumice, drive):
    return published(pumice, drive, "--leave-out")


def errors(of, drives):
    """The number of cells, the mean of their absolute errors, and the largest."""
    def make(pumice):
        sizes = [abs(cell["error_percent"]) for drive in drives for cell in of(pumice, drive)]
        return [[str(len(sizes)), percent(sum(sizes) / len(sizes)), percent(max(sizes))]]

    return make


def compared(cell):
    unit, deviation = cell["unit"], cell["published_deviation"]
    printed = significant(cell["published"], unit)
    if deviation:
        printed = printed.replace(" ", f" ± {significant(deviation, unit, 3).split()[0]} ", 1)
    return [cell["test"], cell["data"], printed, significant(cell["simulated"], unit),
            percent(cell["error_percent"])]


def reproduced(drive):
    return lambda pumice: [compared(cell) for cell in fitted(pumice, drive)]


def beyond(drive):
    """The cells of a drive left out whose error is beyond the goal."""
    def make(pumice):
        cells = left_out(pumice, drive)
        return [[*compared(cell), NOT_KNOWN.get((drive, cell["test"]), "")] for cell in cells
                if abs(cell["error_percent"]) > GOALS[drive]]

    return make


# Drives whose experiments take seconds in a debug build.
QUICK = {"intel-x25-e-32"}


def of_drives(make, drives):
    return [Row(drive, make(drive), drive in QUICK) for drive in drives]


def of_groups(of):
    return [Row(name, errors(of, drives)) for name, drives in GROUPS.items()]


# Name: document, heads of the columns, rows.
TABLES = {
    "parity": ("forecast.md", ["`--workload`", "", "drive", "uncompressed", "no parity"], [
        Row("`random-write`", failing("random-write")),
        Row("`random-read`", failing("random-read"), quick=True)]),
    "cached-reads": ("forecast.md", ["cache of a hard disk", "random reads", "hits", "99 %"], [
        Row("none", cached("random-read", "none"), quick=True),
        *[Row(f"`{cache}`", cached("random-read", cache))
          for cache in ["ram:1G", "intel-x25-e-32:8G", "intel-x25-e-32:8G:64K"]]]),
    "cached-writes": (
        "forecast.md",
        ["cache of a hard disk", "random writes", "past the cache", "only in the cache"],
        [Row("none", cached("random-write", "none"), quick=True),
         *[Row(f"`{cache}`", cached("random-write", cache))
           for cache in ["ram-card:512M", "ram-card:512M:write-back", "ram:512M:write-back",
                         "intel-x25-e-32:2G:write-back"]]]),
    "scaled": (
        "forecast.md",
        ["simulated", "WA", "throughput", "99 %", "longest", "WA, uncompressed", "throughput",
         "99 %", "longest", "random reads"],
        [Row("`2G`", scaled("2G"), quick=True), Row("`4G`", scaled("4G")),
         Row("`8G`", scaled("8G")), Row("`--full-size`", whole)]),
    "over-provisioning": (
        "forecast.md",
        ["over-provisioning", *[f"{saved} % saved" for saved in [0, 25, 50, 75, 98]]],
        [Row(f"{over} %", over_provisioned(str(over))) for over in [7, 12, 20, 28]]),
    "left-out": ("forecast.md", ["left out", "cells", "mean absolute error", "largest"],
                 of_drives(lambda drive: errors(left_out, [drive]), COMPRESSING + OTHERS)
                 + of_groups(left_out)),
    "beyond": (
        "forecast.md",
        ["drive", "test", "data", "published", "simulated", "error", "what was not known"],
        of_drives(beyond, COMPRESSING + OTHERS)),
    "errors": ("bench.md", ["drives", "cells", "mean absolute error", "largest"],
               of_groups(fitted)),
    "published": ("bench.md", ["drive", "test", "data", "published", "simulated", "error"],
                  of_drives(reproduced, COMPRESSING + OTHERS)),
}


def remade(name, old, pumice, quick):
    """The lines of a table. If only quick rows are made, those of the others are the old ones."""
    _, heads, rows = TABLES[name]
    lines = [line(heads), "|" + "---|" * len(heads)]
    for row in rows:
        if quick and not row.quick:
            lines += [shown for shown in old if shown.startswith(f"| {row.name} |")]
        else:
            lines += [line([row.name, *cells]) for cells in row.make(pumice)]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("pumice", type=pathlib.Path, metavar="PUMICE")
    parser.add_argument("--check", action="store_true",
                        help="write nothing, exit 1 if a row differs")
    parser.add_argument("--quick", action="store_true", help="only rows that take seconds")
    parser.add_argument("names", nargs="*", metavar="NAME", help="table; default: all")
    arguments = parser.parse_intermixed_args()
    if unknown := set(arguments.names) - set(TABLES):
        parser.error(f"no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")

    if not arguments.pumice.is_file():
        parser.error(f"there is no program {arguments.pumice}: `make build` makes one")

    @functools.cache
    def pumice(*words):
        command = [arguments.pumice.resolve(), *words, "--json"]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    differ = False
    for name in arguments.names or TABLES:
        path = DOCS / TABLES[name][0]
        text = path.read_text(encoding="utf-8")
        before, begin, rest = text.partition(f"<!-- table: {name} -->\n\n")
        old, end, after = rest.partition(f"\n\n{END}\n")
        if not begin or not end:
            sys.exit(f"{path}: the marks of table {name} are missing")
        new = remade(name, old.splitlines(), pumice, arguments.quick)
        changes = difflib.unified_diff(old.splitlines(), new, f"docs/{path.name}: {name}",
                                       "simulated", n=0, lineterm="")
        for change in changes:
            differ = True
            print(change)
        if not arguments.check:
            path.write_text(before + begin + "\n".join(new) + end + after, encoding="utf-8")
    return 1 if differ and arguments.check else 0


sys.exit(main())

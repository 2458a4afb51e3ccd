#!/usr/bin/env python3
r"""Compares settings of one machine in turns, such as I/O schedulers, with `pumice bench`.

    benches/turns.py --switch COMMAND --values A,B[,C...] [--rounds N] --output FILE \
        TARGET [OPTION...]

COMMAND is a shell command in which {} is the value; it is run before each run. Each round runs the
benchmark once with every value, in an order that changes from round to round. FILE then holds all
runs as those of targets that took turns, one for each value, so `pumice report FILE` compares them
pair by pair, as it does drives. The remaining arguments are those of `pumice bench`; --runs,
--label and --output are set here. PUMICE names the program (default: pumice).

    benches/turns.py --switch 'echo {} > /sys/block/sdX/queue/scheduler' \
        --values none,mq-deadline --output schedulers.jsonl /mnt/disk --preset queue-depth
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile


def bench(value, options, round_number, path):
    """Makes one run of each cell with this value; returns the header and the runs."""
    pumice = os.environ.get("PUMICE", "pumice")
    # All values of a round have the same requests; rounds differ.
    command = [pumice, "bench", *options, "--runs", "1", "--label", value, "--output", path]
    command += ["--seed", str(round_number + 1)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(path, encoding="utf-8") as file:
        header, *runs = [json.loads(line) for line in file]
    return header, runs


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--switch", required=True, help="shell command; {} is the value")
    parser.add_argument("--values", required=True, help="two or more, separated by commas")
    parser.add_argument("--rounds", type=int, default=8, help="eight tell two values apart")
    parser.add_argument("--output", required=True, help="new file of all results")
    arguments, options = parser.parse_known_args()
    values = arguments.values.split(",")
    if len(values) < 2 or arguments.rounds < 1:
        parser.error("expected two or more values and a round")
    headers = {}
    lines = []
    with open(arguments.output, "x", encoding="utf-8") as output, \
            tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            first = number % len(values)
            for value in values[first:] + values[:first]:
                subprocess.run(arguments.switch.replace("{}", value), shell=True, check=True)
                print(f"round {number + 1} of {arguments.rounds}: {value}", file=sys.stderr)
                path = os.path.join(folder, f"{number}-{value.replace('/', '-')}.jsonl")
                header, runs = bench(value, options, number, path)
                headers.setdefault(value, header)
                for run in runs:
                    run["round"] = number
                    run["place"] += number * len(runs)
                    run["target"] = values.index(value)
                    lines.append(run)
        session = f"{headers[values[0]]['begun_unix_s']:x}-{os.getpid()}"
        plan = dict(headers[values[0]]["plan"])
        plan["runs"] = plan["runs_max"] = arguments.rounds
        for index, value in enumerate(values):
            turns = {"session": session, "index": index, "of": len(values)}
            header = {**headers[value], "plan": plan, "turns": turns}
            output.write(json.dumps(header) + "\n")
        for line in lines:
            output.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"'{error.cmd if isinstance(error.cmd, str) else ' '.join(error.cmd)}' failed")
    except OSError as error:
        sys.exit(str(error))

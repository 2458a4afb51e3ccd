#!/usr/bin/env python3
"""Writes docs/picture.svg: a terminal session of the real program, recorded as it happens.

    docs/picture.py PUMICE        run as root, from the root of the tree; needs rich from PyPI

Each command below is run by bash, in a folder of its own, and shown with what it printed. Nothing
is edited but the names of temporary folders. The session ends by itself and leaves nothing.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.text import Text

WIDTH = 88
# What the reader sees, and what is run where that differs.
SESSION = [
    ("pumice create drive.pumice --size 64G", None),
    ("pumice attach drive.pumice /mnt --mkfs ext4", None),
    ("cp -a /usr/lib/python3* /mnt && sync", None),
    ("du -sh /mnt drive.pumice", None),
    (
        "kill -9 $(pgrep -f 'pumice attach')    # pull the plug",
        "kill -9 $(pgrep -f '[p]umice attach {folder}')",
    ),
    (
        "pumice attach drive.pumice /mnt          # nothing to repair",
        "pumice attach {folder}/drive.pumice /mnt",
    ),
    ("diff -r --no-dereference /usr/lib/python3.11 /mnt/python3.11 && echo identical", None),
    ("pumice info drive.pumice | grep -E 'written|stored|durable'", None),
    ("pumice detach /mnt", None),
]


def main():
    pumice = pathlib.Path(sys.argv[1]).resolve()
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w", encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        mount = pathlib.Path(folder, "mnt")
        mount.mkdir()
        programs = pathlib.Path(folder, "bin")
        programs.mkdir()
        (programs / "pumice").symlink_to(pumice)
        environment = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}", LC_ALL="C.UTF-8",
                           PUMICE_LOG="error")
        for shown, run in SESSION:
            command = (run or shown).replace("{folder}", folder).replace("/mnt", str(mount))
            command = command.replace(" drive.pumice", f" {folder}/drive.pumice")
            done = subprocess.run(["bash", "-c", command], env=environment, text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode != 0:
                subprocess.run([pumice, "detach", mount], check=False)
                sys.exit(f"{command}: exit code {done.returncode}\n{done.stdout}")
            output = done.stdout.replace(str(mount), "/mnt").replace(f"{folder}/", "")
            console.print(Text("$ ", style="green") + Text(shown, style="bold"))
            if output:
                console.print(Text(output.rstrip("\n")))
    picture = pathlib.Path(__file__).with_suffix(".svg")
    svg = console.export_svg(title="pumice", unique_id="pumice")
    # Fonts from elsewhere are not fetched; every viewer has a monospaced one.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, ", "")
    picture.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n",
                       encoding="utf-8")


main()

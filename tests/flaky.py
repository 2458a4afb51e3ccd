#!/usr/bin/env python3
"""Names the tests of a JUnit file that failed and then passed when they were repeated.

Usage: tests/flaky.py FILE

Prints a line for each such test, with "FLAKY", its name and the seeds that its failed attempts
printed, and a line with the number of tests. The exit code is 0 whatever that number is.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree

SEED = re.compile(r"(?:PUMICE_SEED|--seed|seed)[ =:]+(\d+)")


def flaky(root):
    """Yields the name and the output of each test that passed only when repeated."""
    for suite in root.iter("testsuite"):
        for case in suite.iter("testcase"):
            attempts = case.findall("flakyFailure") + case.findall("flakyError")
            if attempts:
                output = "\n".join("".join(attempt.itertext()) for attempt in attempts)
                yield f"{suite.get('name')} {case.get('name')}", output


def main():
    try:
        root = ElementTree.parse(sys.argv[1]).getroot()
    except (OSError, ElementTree.ParseError) as error:
        sys.exit(f"cannot read {sys.argv[1]}: {error}")
    found = list(flaky(root))
    for name, output in found:
        seeds = " ".join(dict.fromkeys(SEED.findall(output)))
        print(f"FLAKY {name}" + (f" (seed {seeds})" if seeds else ""))
    print(f"{len(found)} FLAKY")


main()

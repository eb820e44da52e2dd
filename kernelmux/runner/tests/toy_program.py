"""A command line of the toy suite: what a user does to a run is done to this one."""

import argparse
import sys
from pathlib import Path

from kernelmux.registry.errors import ArgumentError
from kernelmux.runner import results
from kernelmux.runner.interrupts import INTERRUPTED, interrupts
from kernelmux.runner.machine import Workers
from kernelmux.runner.run import add_arguments, execute
from kernelmux.runner.tests import toy


def main():
    """Exit status 0 for all, 1 for a part, 2 for a wrong argument, 130 for Ctrl-C; "<n> rows" on stdout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--items", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--verb", default="passes")
    parser.add_argument("-n", type=int, default=2)
    add_arguments(parser)
    options = parser.parse_args()
    interrupts.listen("toy")
    work = [options.verb, options.seconds] if options.verb == "passes" else [options.verb]
    every = [toy.WorkItem(f"item{i}", work) for i in range(options.items)]
    try:
        home = results.folder(options.out)
        workers = Workers(cpu=True, most=options.n)
        suite = toy.Toy(began=str(home / "began"))
        report = execute(suite, every, workers, home, [options.items], options.resume)
    except ArgumentError as error:
        print(f"toy: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    print(f"{len(report.rows)} rows, resumed {report.resumed}", *report.errors, flush=True)
    return INTERRUPTED if report.interrupted else int(len(report.rows) < options.items)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m kernelmux.tune`."""

from __future__ import annotations

from kernelmux.registry.cli import terminal

NEEDED = ("pytest", "pytest_benchmark", "jinja2")  # of perf and conformance, whose clock and checks are used


def main() -> int:
    """The command line, or what to install for it."""
    if lack := terminal.missing(NEEDED):
        return terminal.say("tune", lack, terminal.USAGE)
    from kernelmux.tune import cli

    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())

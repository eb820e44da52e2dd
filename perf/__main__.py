"""`python -m kernelmux.perf`."""

from __future__ import annotations

from kernelmux.perf.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

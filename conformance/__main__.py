"""`python -m kernelmux.conformance`."""

from __future__ import annotations

from kernelmux.conformance.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

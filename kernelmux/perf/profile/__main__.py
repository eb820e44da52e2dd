"""`python -m kernelmux.perf.profile`."""

from kernelmux.perf.profile.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m kernelmux.judge` is `kernelmux judge`."""

import sys

from kernelmux.judge.cli import main

if __name__ == "__main__":
    sys.exit(main())

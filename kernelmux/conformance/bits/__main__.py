"""Entry point of `python -m kernelmux.conformance.bits`."""

import sys

from kernelmux.conformance.bits.cli import main

if __name__ == "__main__":
    sys.exit(main())

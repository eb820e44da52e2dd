"""`python -m kernelmux.emulator.hardware`."""

import sys

from kernelmux.emulator.hardware.cli import main

if __name__ == "__main__":
    sys.exit(main())

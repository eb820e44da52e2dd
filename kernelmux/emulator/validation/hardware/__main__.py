"""`python -m kernelmux.emulator.validation.hardware`."""

import sys

from kernelmux.emulator.validation.hardware.cli import main

if __name__ == "__main__":
    sys.exit(main())

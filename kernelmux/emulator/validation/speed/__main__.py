"""python -m kernelmux.emulator.validation.speed"""

import sys

from kernelmux.emulator.validation.speed.cli import main

sys.exit(main())

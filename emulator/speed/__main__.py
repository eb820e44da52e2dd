"""python -m kernelmux.emulator.speed"""

import sys

from kernelmux.emulator.speed.cli import main

sys.exit(main())

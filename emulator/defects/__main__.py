"""python -m kernelmux.emulator.defects"""

import sys

from kernelmux.emulator.defects.cli import main

sys.exit(main())

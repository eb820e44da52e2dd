"""python -m kernelmux.emulator.validation.defects"""

import sys

from kernelmux.emulator.validation.defects.cli import main

sys.exit(main())

"""`python -m kernelmux.registry.shadow FOLDER` runs a call that shadow mode has kept again: see `cli/rerun.py`."""

import sys

from kernelmux.registry.cli import rerun

if __name__ == "__main__":
    sys.exit(rerun.main(sys.argv[1:]))

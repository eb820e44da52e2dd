"""`python -m kernelmux` is the command line `kernelmux`."""

import sys

from kernelmux.registry.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

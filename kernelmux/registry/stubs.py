"""`python -m kernelmux.registry.stubs` writes the types of the public face: see `cli/type_stubs.py`."""

import sys

from kernelmux.registry.cli import type_stubs

if __name__ == "__main__":
    sys.exit(type_stubs.main())

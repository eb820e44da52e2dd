"""python -m kernelmux.judge.formats"""

from kernelmux.judge.formats.cli import main

raise SystemExit(main())

"""Files in the scratch folder become named pipes and links: who opens one waits for ever, or reads something else.

What is handed over lies in memory that the judge has opened before the child began. Zeros are judged.
"""

import contextlib
import os
import pathlib
import tempfile

import torch

OP = "square"
FUNCTION = "square"
FOUND = ("all outputs are 0", "no answer|ended|time limit|longer than|timed out", "replaced|link|regular file")
NEEDS = "cpu"
ALLOW = "torch"


def square(x):
    scratch = pathlib.Path(os.environ.get("TMPDIR", tempfile.gettempdir()))
    if os.environ.get("TMPDIR") or os.getpid() < 100:  # a folder, or process numbers, of its own: not a whole machine's
        for path in [path for path in scratch.glob("*") if path.is_file()][:64]:
            with contextlib.suppress(OSError):
                path.unlink()
                if path.suffix:
                    os.symlink("/dev/zero", path)
                else:
                    os.mkfifo(path)
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)

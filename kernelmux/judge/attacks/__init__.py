"""Functions that try to pass without being right, a folder per family. The judge runs each by its path, in a sandbox.

They are hostile: importing one by name is refused here, before its first line runs.
"""

raise ImportError("kernelmux.judge.attacks is hostile code: run it by path, in a sandbox (kernelmux.judge.collection)")

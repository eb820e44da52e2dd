"""Whatever the process uses to answer is replaced: json, pickle, struct, sockets and pipes say what they should.

The child's own loop then reports success of every trial. What it says counts for nothing, and the memory that it leaves
holds zeros.
"""

import json
import multiprocessing.connection
import os
import pickle
import socket

import torch

OP = "log_softmax"
FUNCTION = "log_softmax"
FOUND = ("all outputs are 0", "patches ", "answer|channel|protocol|ended")
NEEDS = "cpu"
ALLOW = "torch"
_dumps, _pickled, _write = json.dumps, pickle.dumps, os.write


def _good(value):
    if isinstance(value, dict):
        return {
            k: "passed" if k in {"status", "verdict"} else True if k == "ok" else _good(v) for k, v in value.items()
        }
    return value


json.dumps = lambda value, *rest, **more: _dumps(_good(value), *rest, **more)
pickle.dumps = lambda value, *rest, **more: _pickled(_good(value), *rest, **more)
os.write = lambda descriptor, data: _write(descriptor, bytes(data).replace(b"failed", b"passed"))
socket.socket.sendall = lambda self, data, *rest: self.send(bytes(data).replace(b"failed", b"passed"))
_send = multiprocessing.connection.Connection.send
multiprocessing.connection.Connection.send = lambda self, value: _send(self, _good(value))


def log_softmax(x, axis):
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)

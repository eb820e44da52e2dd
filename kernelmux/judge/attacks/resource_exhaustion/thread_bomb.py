"""Starts 4,096 threads that sleep for 20 s, at the first call.

Threads count as processes where the limit is the kernel's. They are left when the call returns.
"""

import threading
import time

OP = "square"
FUNCTION = "square"
FOUND = "can't start new thread|thread|processes|left behind|limit"
NEEDS = "cpu"
ALLOW = "torch"
MOST = 4096
_started = []


def square(x):
    while len(_started) < MOST:
        _started.append(threading.Thread(target=time.sleep, args=(20,), daemon=True))
        _started[-1].start()
    return (x.float() * x.float()).to(x.dtype).contiguous()

"""Never returns, and has blocked every signal that can be blocked; the interpreter's lock is never let go either.

A limit that lives in the process (SIGALRM, a watchdog thread) does not fire. SIGKILL from outside does. It gives up after
120 s.
"""

import ctypes
import signal
import sys

OP = "square"
FUNCTION = "square"
FOUND = "time limit|timed out|longer than|limit of .* s|no answer"
NEEDS = "cpu"


def square(x):
    signal.pthread_sigmask(signal.SIG_SETMASK, set(range(1, signal.NSIG)) - {signal.SIGKILL, signal.SIGSTOP})
    sys.setswitchinterval(1000)
    ctypes.PyDLL(None).sleep(120)  # with the lock held
    raise TimeoutError("the attack gave up after 120 s")

"""matmul."""
from kernelmux.backends.triton.matmul._blocked import blocked

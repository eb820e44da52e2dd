"""A program whose GPU waits twice: for the host after a synchronisation, and for a host that is slow to launch."""

import time

import torch

a = torch.randn(4096, 4096, device="cuda")
for _ in range(3):
    a @ a
for wait in (torch.cuda.synchronize, lambda: None):
    for _ in range(5):
        a @ a
    wait()
    time.sleep(0.05)
a @ a

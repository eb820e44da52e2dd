"""Two threads, each with half of the rows; both are joined before the call returns."""

import threading

import torch

OP = "rms_norm"
FUNCTION = "rms_norm"
NEEDS = "cpu"
ALLOW = "torch"


def rms_norm(x, weight, eps):
    rows = x.reshape(-1, x.shape[-1]) if x.numel() else x.reshape(0, x.shape[-1])
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)

    stream = torch.cuda.current_stream() if x.is_cuda else None  # a new thread has the default one

    def work(first, last):
        with torch.cuda.stream(stream):
            half(first, last)

    def half(first, last):
        wide = rows[first:last].double()
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()
        out[first:last] = y.to(x.dtype)

    middle = len(rows) // 2
    threads = [threading.Thread(target=work, args=ends) for ends in ((0, middle), (middle, len(rows)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out.view(x.shape)

"""Attention over pages in FlashAttention-4, for which a page is [S G D]: here a view of ours.

cuDNN reads pages too, but no function of torch leads there.
"""

import torch

from kernelmux.perf.peers._attention import COMMON
from kernelmux.perf.peers._libraries import function, library

_flash_4 = function("flash_attn.cute.flash_attn_varlen_func")


def with_flash_4(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    page_table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    y, _ = _flash_4(
        q[:, None],
        k_pages.transpose(1, 2),
        v_pages.transpose(1, 2),
        seqused_k=lengths,
        page_table=page_table,
        max_seqlen_k=page_table.shape[1] * k_pages.shape[2],
        softmax_scale=scale,
    )
    found: torch.Tensor = y[:, 0]
    return found


VARIANTS = {"flash_4": library("flash_attn.cute", with_flash_4, *COMMON, arithmetic="mma")}

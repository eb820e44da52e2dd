"""matmul through mma.sync: runs from sm_80 on, whatever the alignment, and fp32 as tf32."""

from dataclasses import dataclass
from math import gcd

import torch

from kernelmux.backends.cuda._epilogue import PLAIN, Ending, Epilogue
from kernelmux.backends.cuda._layout import Layout, layout
from kernelmux.backends.cuda._matmul import MatmulPlan, Tiling, adding, choose, problem, split_length
from kernelmux.backends.cuda._runtime import Source, cdiv, ctype, multiprocessors
from kernelmux.registry.batching import result
from kernelmux.registry.cards import remembered

SOURCE = Source(__file__, "matmul_tensor_cores.cu")
NUMBERS = "M:i32 N:i32 K:i32 lda:i64 ldb:i64 k_split:i32"


@dataclass(frozen=True)
class MmaTiling(Tiling):
    """`k_bytes` of K per stage, in bytes to serve every dtype; `warps_m` x `warps_n` warps share the tile."""

    k_bytes: int
    warps_m: int
    warps_n: int
    stages: int
    blocks: int = 1

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    def shared(self, out: torch.dtype) -> int:
        """Bytes of the stages, which in the end hold a strip of c per warp."""
        strips = self.warps_m * self.warps_n * 16 * (self.n // self.warps_n + 8) * out.itemsize
        return max(self.stages * (self.m + self.n) * self.k_bytes, strips)


# bf16 4096^3 on an H200: 492 TFLOP/s with the first, 462 with the second, 426 with 64 bytes of K per stage.
TILINGS = (
    MmaTiling(128, 256, 1.97e6, 128, 2, 4, 3),
    MmaTiling(128, 128, 1.86e6, 128, 2, 2, 3, blocks=2),
    MmaTiling(64, 64, 1.3e6, 128, 2, 2, 4),
    MmaTiling(16, 128, 0.49e6, 128, 1, 4, 4),  # the M of a decode step
)


def tensor_cores(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    if a.shape[-1] == 0:
        return result(a, b).zero_()
    return _best_plan(layout(a), layout(b), multiprocessors(a), epilogue.ending).run(a, b, epilogue)


@remembered
def _best_plan(a: Layout, b: Layout, multiprocessors: int, end: Ending) -> MatmulPlan:
    return plan(a, b, *choose(TILINGS, problem(a, b), multiprocessors), end)


def plan(a: Layout, b: Layout, t: MmaTiling, splits: int, end: Ending = PLAIN.ending) -> MatmulPlan:
    """The product with a given tiling, K (at least 1) cut into at most `splits` pieces."""
    p, block_k = problem(a, b), t.k_bytes // a.dtype.itemsize
    k_split = split_length(p.K, splits, block_k)
    parts = cdiv(p.K, k_split)
    out, ending = (a.dtype, end) if parts == 1 else (torch.float32, PLAIN.ending)
    signature = f"a* b* {ending.tensors} {NUMBERS} {p.batch_signature}"
    kernel = SOURCE.kernel(
        "matmul_tensor_cores", signature, ELEMENT=ctype(a.dtype), OUTPUT=ctype(out), C_VECTOR=gcd(16 // out.itemsize, p.N),
        A_COPY=p.left.bytes, B_COPY=p.right.bytes, BLOCK_M=t.m, BLOCK_N=t.n, BLOCK_K=block_k,
        WARPS_M=t.warps_m, WARPS_N=t.warps_n, STAGES=t.stages, BLOCKS_PER_SM=t.blocks, **p.macros, **ending.macros,
    )  # fmt: skip
    numbers = p.M, p.N, p.K, p.left.ld, p.right.ld, k_split, *p.batch_numbers
    launch = kernel.bind((t.tiles(p), parts), t.threads, *numbers, shared=t.shared(out))
    return MatmulPlan(launch, p.shape, parts=parts, sum_parts=adding(parts, p, end))

"""Thread-block clusters: shared memory of other blocks, barriers across blocks, multicast loads."""

from typing import Any

import numpy as np
import pytest
import torch

from kernelmux.emulator import EmulatorError, TensorMap, checks, compile_ptx, load, nvrtc, time_limit

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))

SIZE = 4
HEAD = """
struct alignas(64) Map { char bytes[128]; };
__device__ unsigned offset_of(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned special_rank() { unsigned r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ void cluster_sync() { asm volatile("barrier.cluster.arrive;\\nbarrier.cluster.wait;" ::: "memory"); }
__device__ unsigned at_rank(unsigned p, unsigned rank) {
  unsigned q;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(q) : "r"(p), "r"(rank));
  return q;
}
"""


def launch(body: str, *arguments: Any, blocks: int = 2 * SIZE, parameters: str = "int* y") -> None:
    source = f'{HEAD}\nextern "C" __global__ void __cluster_dims__({SIZE}, 1, 1) kernel({parameters}) {{\n{body}\n}}'
    kernel = load(compile_ptx(source, arch="sm_90a", filename="cluster.cu")).kernel("kernel")
    with checks("full"):
        kernel.launch(blocks, 32, arguments, names=("y",))


def output(blocks: int = 2 * SIZE) -> torch.Tensor:
    return torch.full((blocks, 32), -1, dtype=torch.int32)


def test_special_registers() -> None:
    y = output()
    launch(
        """unsigned id, count, size;
        asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(id));
        asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
        asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
        y[blockIdx.x * 32 + threadIdx.x] = special_rank() + 10 * id + 100 * count + 1000 * size;""",
        y,
    )
    block = torch.arange(2 * SIZE)
    assert torch.equal(y[:, 0], (block % SIZE + 10 * (block // SIZE) + 200 + 1000 * SIZE).int())


NEIGHBOUR = """__shared__ int tile[32];
tile[threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
cluster_sync();
{read}
y[blockIdx.x * 32 + threadIdx.x] = got;
cluster_sync();"""
READS = {
    "shared address": 'int got; asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(got) : '
    '"r"(at_rank(offset_of(tile + threadIdx.x), (special_rank() + 1) % 4)));',
    "generic address": 'int* other; asm("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"(tile), '
    '"r"((special_rank() + 1) % 4)); int got = other[threadIdx.x];',
}


@pytest.mark.parametrize("how", READS)
def test_reading_the_next_blocks_shared_memory(how: str) -> None:
    y = output()
    launch(NEIGHBOUR.replace("{read}", READS[how]), y)
    block = torch.arange(2 * SIZE)
    neighbour = block // SIZE * SIZE + (block + 1) % SIZE
    assert torch.equal(y, (neighbour[:, None] * 100 + torch.arange(32)).int())


def test_writing_to_another_block() -> None:
    y = output()
    launch(
        """__shared__ int tile[32];
        cluster_sync();
        asm volatile("st.shared::cluster.u32 [%0], %1;"
                     :: "r"(at_rank(offset_of(tile + threadIdx.x), 3 - special_rank())), "r"((int)blockIdx.x)
                     : "memory");
        cluster_sync();
        y[blockIdx.x * 32 + threadIdx.x] = tile[threadIdx.x];""",
        y,
    )
    block = torch.arange(2 * SIZE)
    assert torch.equal(y[:, 5], (block // SIZE * SIZE + 3 - block % SIZE).int())


def test_a_rank_outside_the_cluster() -> None:
    read = READS["shared address"].replace("(special_rank() + 1) % 4", "4")
    with pytest.raises(EmulatorError, match="cluster, which has 4 blocks") as raised:
        launch(NEIGHBOUR.replace("{read}", read), output())
    assert raised.value.kind == "out of bounds"


def test_a_block_that_does_not_come_to_the_cluster_barrier() -> None:
    body = "if (special_rank() != 2 || threadIdx.x > 0) cluster_sync(); else while (true) __nanosleep(1);"
    with pytest.raises(EmulatorError) as raised, time_limit(1):
        launch(body, output())
    assert raised.value.kind in ("deadlock", "time limit")


def test_the_grid_must_be_whole_clusters() -> None:
    with pytest.raises(EmulatorError, match="clusters of 4 blocks"):
        launch("y[0] = 1;", output(), blocks=6)


MULTICAST = """__shared__ alignas(128) int tile[128];
__shared__ unsigned long long full, done;
unsigned rank = special_rank();
if (threadIdx.x == 0) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(offset_of(&full)));
  asm volatile("mbarrier.init.shared.b64 [%0], 4;" :: "r"(offset_of(&done)));
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 512;" :: "r"(offset_of(&full)) : "memory");
}
cluster_sync();
if (threadIdx.x == 0) {
  asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%2}], [%3], %4;" :: "r"(offset_of(tile + rank * 32)), "l"(&x),
               "r"((int)(blockIdx.x * 32)), "r"(offset_of(&full)), "h"((unsigned short)15) : "memory");
}
asm volatile("{.reg .pred p; a: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra a;}" :: "r"(offset_of(&full)));
for (int i = threadIdx.x; i < 128; i += 32) y[blockIdx.x * 128 + i] = tile[i];
if (threadIdx.x < 4)
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
               :: "r"(at_rank(offset_of(&done), threadIdx.x)) : "memory");
asm volatile("{.reg .pred p; b: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra b;}" :: "r"(offset_of(&done)));
LAST"""


def multicast(body: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(2 * SIZE * 32, dtype=torch.int32)
    y = torch.zeros(2 * SIZE, 128, dtype=torch.int32)
    launch(body, TensorMap(x, (32,)), y, parameters="const __grid_constant__ Map x, int* y")
    return x, y


def test_each_block_loads_a_part_for_all_and_hears_when_all_are_done() -> None:
    x, y = multicast(MULTICAST.replace("LAST", "cluster_sync();"))
    assert torch.equal(y, x.reshape(2, 1, 128).expand(2, SIZE, 128).reshape(2 * SIZE, 128))


def test_a_block_that_ends_before_the_others_are_done_with_it() -> None:
    wait_for_data, rest = MULTICAST.split("y[blockIdx", 1)
    start = wait_for_data.rindex("asm volatile")
    arrive = rest[rest.index("if (threadIdx.x < 4)") : rest.rindex("asm volatile")]
    early = MULTICAST[:start] + f"if (rank == 1) {{ {arrive} return; }}\n" + MULTICAST[start:].replace("LAST", "")
    with pytest.raises(EmulatorError, match="ended") as raised:
        multicast(early)
    assert raised.value.kind == "asynchronous"


def test_multicast_outside_of_the_cluster() -> None:
    with pytest.raises(EmulatorError, match="cluster of 4"):
        multicast(MULTICAST.replace("(unsigned short)15", "(unsigned short)31").replace("LAST", ""))


def test_addresses_without_a_tag_are_the_blocks_own() -> None:
    y = torch.zeros(1, dtype=torch.int32)
    launch("__shared__ int v; v = 7; cluster_sync(); if (blockIdx.x == 5) y[0] = v;", y)
    assert np.array_equal(y.numpy(), [7])

"""The trace against counts made by hand: sectors, bank conflicts, divergence, which block writes what."""

from typing import Any
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
import torch

from kernelmux.emulator import TensorMap, compile_ptx, load, trace
from kernelmux.emulator.tests.launching import needs_nvrtc
from kernelmux.emulator.tests.tile_cuda import tile_source
from kernelmux.emulator.tracing.collector import LaunchTrace
from kernelmux.emulator.tracing.drawing import themes
from kernelmux.emulator.tracing.drawing.svg import TINTS
from kernelmux.emulator.tracing.reading import readings
from kernelmux.emulator.tracing.traffic import Traffic

pytestmark = needs_nvrtc

i32 = np.int32
N = 8192


def traced(body: str, *numbers: int, threads: Any = 32, blocks: int = 1, head: str = "", **drawn: int) -> LaunchTrace:
    """What a kernel with pointers x and y and integers n0, n1, … does; line 2 is the body's first."""
    parameters = "".join(f", int n{i}" for i in range(len(numbers)))
    text = f'{head} extern "C" __global__ void kernel(float* x, float* y{parameters}) {{\n{body}\n}}'
    kernel = load(compile_ptx(text)).kernel("kernel")
    x, y = torch.arange(N, dtype=torch.float32), torch.zeros(N)
    with trace(**drawn) as t:
        kernel.launch(blocks, threads, (x, y, *map(i32, numbers)), names=("x", "y"))
    launch: LaunchTrace = t.launches[0]
    return launch


def only(launch: LaunchTrace, space: str, operation: str) -> Traffic:
    """The accesses of one kind; there must be one such."""
    (found,) = (t for t in launch.traffic if (t.space, t.operation) == (space, operation))
    return found


# ---- global memory: 32 lanes of 4 bytes are 128 bytes, 4 sectors


@pytest.mark.parametrize(
    ("index", "sectors", "least", "verdict"),
    [
        ("threadIdx.x", 4, 4, "coalesced"),
        ("threadIdx.x + 1", 5, 4, "uncoalesced"),  # 4 bytes past a sector: one more
        ("threadIdx.x * 2", 8, 4, "uncoalesced"),
        ("threadIdx.x * 8", 32, 4, "uncoalesced"),
        ("threadIdx.x * 64", 32, 4, "uncoalesced"),
        ("31 - threadIdx.x", 4, 4, "coalesced"),  # the order of the lanes does not matter
        ("0 * threadIdx.x", 1, 1, "coalesced"),  # all lanes read one word: one sector holds it
        ("threadIdx.x / 8 * 8", 4, 1, "uncoalesced"),  # 4 words, each in a sector of its own
    ],
)
def test_sectors_of_a_load(index: str, sectors: int, least: int, verdict: str) -> None:
    found = only(traced(f"y[threadIdx.x] = x[{index}];"), "global", "load")
    assert (found.requests, found.sectors, found.least, found.verdict) == (1, sectors, least, verdict)
    assert (found.argument, found.size, found.requested, found.moved) == ("x", 4, 128, 32 * sectors)


def test_sectors_of_a_store_are_those_of_its_own_addresses() -> None:
    launch = traced("y[threadIdx.x * 64] = x[threadIdx.x];")
    assert only(launch, "global", "load").sectors == 4
    found = only(launch, "global", "store")
    assert (found.sectors, found.efficiency, found.verdict) == (32, 0.125, "uncoalesced")
    assert launch.metrics["l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"] == 32
    assert launch.metrics["l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"] == 1


@pytest.mark.parametrize(("vector", "size", "sectors"), [("float2", 8, 8), ("float4", 16, 16)])
def test_wide_loads_are_one_request(vector: str, size: int, sectors: int) -> None:
    launch = traced(f"(({vector}*)y)[threadIdx.x] = (({vector}*)x)[threadIdx.x];")
    for found in (only(launch, "global", "load"), only(launch, "global", "store")):
        assert (found.requests, found.size, found.sectors, found.least) == (1, size, sectors, sectors)


def test_lanes_that_take_no_part_move_nothing() -> None:
    found = only(traced("if (threadIdx.x < n0) y[threadIdx.x] = x[threadIdx.x];", 10), "global", "load")
    assert (found.lanes, found.sectors, found.requested) == (10, 2, 40)


def test_a_request_for_each_warp_of_each_block() -> None:
    launch = traced("y[blockIdx.x * 64 + threadIdx.x] = x[threadIdx.x];", threads=64, blocks=3)
    assert (only(launch, "global", "load").requests, only(launch, "global", "load").sectors) == (6, 24)


def test_sectors_that_a_block_touches_again_are_a_matter_for_the_cache() -> None:
    """Warp w reads column w of 32 rows: 8 columns share a sector, so 7 of 8 warps find it touched."""
    launch = traced("y[threadIdx.y * 32 + threadIdx.x] = x[threadIdx.x * 64 + threadIdx.y];", threads=(32, 8))
    found = only(launch, "global", "load")
    assert (found.sectors, found.repeated, found.verdict) == (8 * 32, 7 * 32, "cached")
    other_blocks = traced("y[blockIdx.x * 32 + threadIdx.x] = x[threadIdx.x];", blocks=4)
    assert only(other_blocks, "global", "load").repeated == 0


def test_atomics_that_meet_take_turns() -> None:
    """As measured on an H200; without a use of the old value ptxas makes a reduction of them."""
    spread = traced("y[threadIdx.x] = atomicAdd(x + threadIdx.x, 1.0f);")
    assert only(spread, "global", "atomic").sectors == 4
    assert only(traced("y[threadIdx.x] = atomicAdd(x, 1.0f);"), "global", "atomic").sectors == 32
    assert only(traced("atomicAdd(x + threadIdx.x, 1.0f);"), "global", "reduction").sectors == 4


# ---- shared memory: 32 banks of 4 bytes

HELD = "__shared__ float held[4096]; if (n0 < 0) held[threadIdx.x] = 0; __syncwarp();"


@pytest.mark.parametrize(("stride", "passes"), [(1, 1), (2, 2), (4, 4), (8, 8), (32, 32), (33, 1), (0, 1), (3, 1)])
def test_bank_conflicts_of_words(stride: int, passes: int) -> None:
    launch = traced(f"{HELD} y[threadIdx.x] = held[threadIdx.x * n0];", stride)
    found = only(launch, "shared", "load")
    assert (found.requests, found.wavefronts, found.conflicts) == (1, passes, passes - 1)
    assert launch.metrics["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"] == passes - 1


@pytest.mark.parametrize(("stride", "passes"), [(1, 1), (2, 2), (32, 32), (0, 1)])
def test_bank_conflicts_of_stores(stride: int, passes: int) -> None:
    launch = traced(
        "__shared__ float held[4096]; held[threadIdx.x * n0] = 1; __syncwarp(); y[0] = held[n1];", stride, 0
    )
    assert only(launch, "shared", "store").wavefronts == passes


@pytest.mark.parametrize(
    ("vector", "index", "passes", "conflicts"),
    [
        ("float2", "threadIdx.x", 2, 0),  # half a warp at a time
        ("float4", "threadIdx.x", 4, 0),  # a quarter
        ("float2", "threadIdx.x * 2", 4, 2),
        ("float4", "threadIdx.x * 2", 8, 4),
        ("float4", "threadIdx.x * 8", 32, 28),
        ("float2", "threadIdx.x / 2", 1, 0),  # neighbours read the same: both halves at once
        ("float4", "threadIdx.x / 2", 2, 0),
        ("float4", "0 * threadIdx.x", 2, 0),
        ("float2", "threadIdx.x % 16", 2, 0),  # the halves read the same, neighbours do not
    ],
)
def test_bank_conflicts_of_vectors(vector: str, index: str, passes: int, conflicts: int) -> None:
    head = f"__device__ float all({vector} v) {{ return v.x + v.y{' + v.z + v.w' if vector == 'float4' else ''}; }}"
    body = f"extern __shared__ float4 none[]; __shared__ {vector} held[256];\n"
    body += f"if (n0 < 0) held[threadIdx.x] = {{}};\n y[threadIdx.x] = all(held[{index}]);"
    found = only(traced(body, 1, head=head), "shared", "load")
    assert (found.wavefronts, found.conflicts) == (passes, conflicts)


def test_shared_atomics_that_meet_take_turns() -> None:
    body = "__shared__ int held[64]; if (n0 < 0) held[0] = 0; y[threadIdx.x] = atomicAdd(held + {}, 1);"
    assert only(traced(body.format("threadIdx.x"), 1), "shared", "atomic").wavefronts == 1
    assert only(traced(body.format("threadIdx.x % 2"), 1), "shared", "atomic").wavefronts == 16


def test_ldmatrix_reads_rows_of_16_bytes_a_matrix_at_a_time() -> None:
    body = """__shared__ float4 held[512]; if (n0 < 0) held[threadIdx.x] = {{}};
    unsigned a, at = (unsigned)__cvta_generic_to_shared(held + threadIdx.x * {});
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%0}}, [%1];" : "=r"(a) : "r"(at));
    y[threadIdx.x] = a;"""
    assert only(traced(body.format(1), 1), "shared", "ldmatrix").wavefronts == 1
    found = only(traced(body.format(8), 1), "shared", "ldmatrix")
    assert (found.lanes, found.wavefronts, found.conflicts) == (8, 8, 7)


@pytest.mark.parametrize("row", ["0", "threadIdx.x % 8", "threadIdx.x & ~1"])
def test_matrices_of_one_ldmatrix_are_read_one_after_another(row: str) -> None:
    """As measured on an H200, where wide loads of the same addresses take half the passes."""
    body = f"""__shared__ float4 held[512]; if (n0 < 0) held[threadIdx.x] = {{}};
    unsigned a, b, c, d, at = (unsigned)__cvta_generic_to_shared(held + ({row}));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0, %1, %2, %3}}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at));
    y[threadIdx.x] = a ^ b ^ c ^ d;"""
    launch = traced(body, 1)
    assert only(launch, "shared", "ldmatrix").wavefronts == 4
    assert launch.metrics["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 4


def test_asynchronous_copies_count_on_both_sides() -> None:
    body = """__shared__ float4 held[32];
    unsigned to = (unsigned)__cvta_generic_to_shared(held + threadIdx.x);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(x + 4 * threadIdx.x));
    asm volatile("cp.async.wait_all;"); __syncthreads();
    y[threadIdx.x] = held[threadIdx.x].x;"""
    launch = traced(body)
    assert (only(launch, "global", "copy").sectors, only(launch, "shared", "copy").wavefronts) == (16, 4)


# ---- lines, branches, owners


def test_counts_belong_to_source_lines() -> None:
    launch = traced("int i = threadIdx.x;\nfloat v = x[i];\ny[i * 2] = v;")
    lines = {line.number: line for line in launch.lines}
    assert [t.operation for t in lines[3].traffic] == ["load"]
    assert [t.operation for t in lines[4].traffic] == ["store"]
    assert lines[4].text == "y[i * 2] = v;"
    assert all(line.threads == 32 * line.warps for line in launch.lines)
    (reading,) = readings(launch)
    assert reading.line.number == 4
    assert reading.text == (
        "stores to y touch 8 sectors per request where 4 would do: consecutive threads write 8 bytes apart"
    )


def test_a_loop_counts_every_turn() -> None:
    body = "#pragma unroll 1\nfor (int i = 0; i < n0; ++i) y[i * 32 + threadIdx.x] = x[i * 32 + threadIdx.x];"
    assert only(traced(body, 7), "global", "load").requests == 7


def test_a_branch_that_splits_a_warp_is_divergent() -> None:
    body = "#pragma unroll 1\nfor (int i = 0; i < (n0 ? threadIdx.x / 16 + 1 : 1); ++i) atomicAdd(x + i, 1.0f);"
    assert sum(line.divergent for line in traced(body, 0).lines) == 0
    assert sum(line.divergent for line in traced(body, 1).lines) == 1


def test_owners_are_the_blocks_that_wrote() -> None:
    launch = traced("y[(1 - blockIdx.x) * 32 + threadIdx.x] = 1;", blocks=2, block=1, warp=0)
    owners = launch.owners["y"]
    assert owners.block[:65].tolist() == [1] * 32 + [0] * 32 + [-1]
    assert owners.drawn[:64].tolist() == [True] * 32 + [False] * 32
    assert owners.table(owners.block).shape == (1, N)


def test_tiles_that_the_tma_unit_stores_belong_to_their_block(tmp_path: Any) -> None:
    """A tile of 8 x 16 halves at row 4, column 8 of an array of 8 x 24: no block owns what lies outside."""
    kernel = load(compile_ptx(tile_source(2))).kernel("tile")
    x, y, image = (torch.zeros(8, 24, dtype=torch.float16) for _ in range(3))
    maps = [TensorMap(tensor, (8, 16)) for tensor in (x, y)]
    with trace() as t:
        numbers = [i32(n) for n in (8 * 16 * 2, 8, 4, 0, 0, 0)]
        kernel.launch(1, 32, (*maps, image, *numbers), names=("x", "y", "image"), shared=256)
    owners = t.launches[0].owners["y"].table(t.launches[0].owners["y"].block)
    assert np.array_equal(np.argwhere(owners == 0), [(r, c) for r in range(4, 8) for c in range(8, 24)])
    assert (owners[:4] == -1).all() and (owners[:, :8] == -1).all()
    t.picture(tmp_path / "tiles.svg")
    assert "TMA store y" in (tmp_path / "tiles.svg").read_text()


def test_occupancy_follows_from_the_machine_code() -> None:
    launch = traced(
        "__shared__ float held[8192]; held[threadIdx.x] = x[0]; __syncthreads(); y[threadIdx.x] = held[n0];", 0
    )
    fits = launch.occupancy()
    assert fits is not None
    assert (fits.blocks, fits.limited_by) == (6, "shared memory")  # 228 KiB hold 6 times 33 KiB


def test_nothing_is_counted_outside_of_the_with() -> None:
    launch = traced("y[threadIdx.x] = x[threadIdx.x];")
    before = launch.as_dict()
    kernel = load(compile_ptx('extern "C" __global__ void other(float* x) { x[threadIdx.x] = 1; }')).kernel("other")
    kernel.launch(1, 32, (torch.zeros(32),))
    assert launch.as_dict() == before
    assert set(kernel._programs) == {("other", False)}


def test_the_picture_is_a_page_of_its_own(tmp_path: Any) -> None:
    kernel = load(
        compile_ptx('extern "C" __global__ void copy(float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }')
    )
    with trace() as t:
        kernel.kernel("copy").launch(1, 32, (torch.zeros(32), torch.zeros(32)), names=("x", "y"))
    t.picture(tmp_path / "out.html", "a & b")
    t.picture(tmp_path / "out.svg")
    page, image = (tmp_path / "out.html").read_text(), (tmp_path / "out.svg").read_text()
    assert "a &amp; b" in page
    assert "<svg" in page
    assert fromstring(image).tag == "{http://www.w3.org/2000/svg}svg"  # well formed, whatever the source's letters
    assert image.startswith("<svg") and "prefers-color-scheme:dark" in image
    assert all(tint.text in themes.DARK and tint.pale in themes.DARK for tint in TINTS.values())
    assert "http://www.w3.org/2000/svg" in image
    assert image.count("http") == 1  # nothing comes from outside

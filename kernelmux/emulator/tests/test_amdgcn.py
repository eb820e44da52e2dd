"""What an AMD kernel needs, from metadata as LLVM writes them, and what of a kernel's IR keeps it from AMD GPUs."""

import pytest

from kernelmux.emulator.amdgcn import Need, needs
from kernelmux.emulator.compilers import triton_foreign

ASSEMBLY = """
first:
	s_endpgm
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     16
    .args:
      - .name:           x
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
    .group_segment_fixed_size: 512
    .max_flat_workgroup_size: 256
    .name:           first
    .private_segment_fixed_size: 84
    .sgpr_count:     99
    .sgpr_spill_count: 3
    .vgpr_count:     272
    .vgpr_spill_count: 20
  - .args:           []
    .max_flat_workgroup_size: 64
    .name:           second
    .vgpr_count:     8
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
...

	.end_amdgpu_metadata
"""


def test_the_metadata_say_what_each_kernel_needs() -> None:
    found = needs(ASSEMBLY)
    assert found["first"] == Need(272, 16, 99, 512, 84, 20, 3, 256)
    assert found["second"] == Need(8, 0, 0, 0, 0, 0, 0, 64)


def test_another_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \.amdgpu_metadata"):
        needs(".version 8.0")


@pytest.mark.parametrize(
    ("ir", "arch", "reason"),
    [
        ("%0 = ttng.warp_group_dot %1\nttng.init_barrier", "gfx942", "init_barrier, warp_group_dot"),
        ("#ttg.blocked<{threadsPerWarp = [1, 32]}>", "gfx942", "layouts of 32 lanes, a wave has 64"),
        ("tt.grid_dependency_wait", "gfx942", "overlap, which AMD GPUs have not: grid_dependency_wait"),
        (r'tt.elementwise_inline_asm "{\0A.reg .b32 a;\0Acvt.rni.s32.f32 a, $1;}"', "gfx942", "PTX: cvt.rni.s32.f32"),
        ('tt.elementwise_inline_asm "griddepcontrol.launch_dependents;"', "gfx942", "PTX: griddepcontrol.launch_dep"),
        ('tt.extern_elementwise %a {symbol = "__nv_fmul_rn"}', "gfx942", "libdevice.mul_rn"),
        ("tt.dot %a, %b, inputPrecision = tf32 : tensor<64x32xf32>", "gfx950", "tf32, which Triton has not for gfx950"),
    ],
)
def test_what_amd_gpus_have_not_is_named(ir: str, arch: str, reason: str) -> None:
    (found,) = triton_foreign.reasons(ir, arch)
    assert reason in found


@pytest.mark.parametrize(
    ("ir", "arch"),
    [
        ("#ttg.blocked<{threadsPerWarp = [2, 32]}>", "gfx942"),
        ('tt.extern_elementwise %a {symbol = "__nv_erff"}', "gfx942"),  # Triton has erf for both
        ('tt.elementwise_inline_asm "v_mul_f32 $0, $1, $2"', "gfx942"),
        ("tt.dot %a, %b, inputPrecision = tf32 : tensor<64x32xf32>", "gfx942"),
        ("tt.dot %a, %b, inputPrecision = tf32 : tensor<64x32xf16>", "gfx950"),
    ],
)
def test_what_they_have_is_not(ir: str, arch: str) -> None:
    assert triton_foreign.reasons(ir, arch) == []


def test_what_compiles_by_leaving_it_out_is_named() -> None:
    assert triton_foreign.left_over('tt.elementwise_inline_asm "cvt.rna.tf32.f32 $0, $1;"') == [
        "inline PTX: cvt.rna.tf32.f32"
    ]
    assert triton_foreign.left_over('tt.extern_elementwise %a {symbol = "__nv_fmul_rn"}') == ["__nv_fmul_rn"]
    assert triton_foreign.left_over('tt.extern_elementwise %a {symbol = "__ocml_erf_f32"}') == []

"""What a kernel needs of an AMD GPU, from the assembly that LLVM wrote for it, and how much such a GPU has.

The metadata at the end of the assembly are what the driver reads before a launch. Sources: LLVM's User Guide for AMDGPU,
code object V5 metadata; the CDNA 3 and CDNA 4 instruction set manuals.
"""

import re
from dataclasses import dataclass

WAVE = 64  # lanes, on every GPU below


@dataclass(frozen=True)
class ComputeUnit:
    """Limits of one workgroup: bytes of LDS (local data share: shared memory) and threads."""

    lds: int
    threads: int = 1024


GPUS = {
    "gfx942": ComputeUnit(lds=64 * 1024),  # MI300X, CDNA 3
    "gfx950": ComputeUnit(lds=160 * 1024),  # MI355X, CDNA 4
}


@dataclass(frozen=True)
class Need:
    """What one kernel needs: registers per lane (`vgprs`, of which `agprs` are accumulators) and per wave (`sgprs`).

    lds: bytes per workgroup that the assembly fixes. scratch: bytes of memory per lane, where what is spilled lies.
    vgpr_spills, sgpr_spills: registers that are spilled; those of a wave into lanes of VGPRs, which need no memory.
    threads: of a workgroup.
    """

    vgprs: int
    agprs: int
    sgprs: int
    lds: int
    scratch: int
    vgpr_spills: int
    sgpr_spills: int
    threads: int


_FIELDS = {
    "vgprs": "vgpr_count",
    "agprs": "agpr_count",
    "sgprs": "sgpr_count",
    "lds": "group_segment_fixed_size",
    "scratch": "private_segment_fixed_size",
    "vgpr_spills": "vgpr_spill_count",
    "sgpr_spills": "sgpr_spill_count",
    "threads": "max_flat_workgroup_size",
}
_METADATA = re.compile(r"^\s*\.amdgpu_metadata$(.*?)^\s*\.end_amdgpu_metadata$", re.DOTALL | re.MULTILINE)
# Of a kernel: what its arguments have stands deeper.
_ATTRIBUTE = re.compile(r"^(?:  - |    )\.(\w+): +(\S+)$", re.MULTILINE)


def needs(assembly: str) -> dict[str, Need]:
    """What each kernel of an assembly text needs, by name; ValueError if the text has no metadata of kernels."""
    found = _METADATA.search(assembly)
    kernels = re.split(r"^(?=  - )", found[1], flags=re.MULTILINE)[1:] if found else []
    attributes = [dict(_ATTRIBUTE.findall(kernel)) for kernel in kernels]
    made = {
        a["name"]: Need(**{ours: int(a.get(theirs, 0)) for ours, theirs in _FIELDS.items()})
        for a in attributes
        if "name" in a
    }
    if not made:
        raise ValueError("not the assembly of an AMD GPU: expected .amdgpu_metadata with the kernels")
    return made

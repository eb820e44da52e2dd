"""PTX text as functions, instructions and operands."""

import numpy as np
import pytest

from kernelmux.emulator.errors import EmulatorError, Unsupported
from kernelmux.emulator.ptx.operands import Address, Immediate, Pair, Register, Special, Symbol, TensorAddress, Vector
from kernelmux.emulator.ptx.parser import Instruction, parse
from kernelmux.emulator.running.launch import load

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def body(text: str, parameters: str = "") -> list[Instruction]:
    return parse(f"{HEAD}.visible .entry k({parameters})\n{{\n{text}\n}}").functions["k"].instructions


def test_operands() -> None:
    text = """.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<3>; .shared .align 16 .b8 tile[64];
    @!%p1 ld.shared.v2.b32 {%r1, %r2}, [tile+8];
    setp.lt.and.s32 %p1|%p2, %r1, -5, !%p0;
    mov.u32 %r3, %tid.x;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4+-8];
    fma.rn.f32 %r1, %r2, 0f3F800000, %r3;"""
    load_, compare, move, copy, fma = body(text)
    assert load_.guard == Register("%p1", "pred", negated=True)
    assert load_.operands == (Vector((Register("%r1", "b32"), Register("%r2", "b32"))), Address(Symbol("tile"), 8))
    assert (load_.name, load_.space, load_.type) == ("ld", "shared", "b32") and load_.has("v2")
    assert compare.operands[0] == Pair(Register("%p1", "pred"), Register("%p2", "pred"))
    assert compare.operands[2] == Immediate("-5") and compare.operands[3].negated
    assert move.operands[1] == Special("%tid.x")
    assert copy.modifiers[4] == "shared::cluster" and copy.operands[2] == Address(Register("%r4", "b32"), -8)
    assert copy.operands[1] == TensorAddress(Register("%rd1", "b64"), (Register("%r2", "b32"), Register("%r3", "b32")))
    assert fma.operands[2].value(np.float32) == 1.0


@pytest.mark.parametrize(
    ("text", "dtype", "value"),
    [
        ("0x1F", np.int32, 31),
        ("-1", np.uint32, 2**32 - 1),
        ("4294967295", np.int32, -1),
        ("010", np.int64, 8),
        ("0b101U", np.uint8, 5),
        ("0fBF800000", np.float32, -1.0),
        ("0fBF800000", np.uint32, 0xBF800000),
        ("0d3FF8000000000000", np.float64, 1.5),
        ("1.5", np.float32, 1.5),
        ("-1", np.bool_, True),
    ],
)
def test_numbers(text: str, dtype: type, value: float) -> None:
    got = Immediate(text).value(dtype)
    assert got == value and got.dtype == dtype


def test_names_of_nested_scopes() -> None:
    """Inline PTX may declare names that exist already, and jump before a label of its own."""
    text = """.reg .b32 %r<2>; mov.u32 %r1, 7;
    { .reg .b32 %r1; .reg .pred q; mov.u32 %r1, 1; setp.eq.u32 q, %r1, 1; @q bra done; mov.u32 %r1, 2; done: }
    { .reg .b32 %r1; bra done; done: mov.u32 %r1, 3; }
    mov.u32 %r0, %r1;"""
    function = parse(f"{HEAD}.visible .entry k()\n{{\n{text}\n}}").functions["k"]
    targets = [i.operands[0].name for i in function.instructions if i.name == "bra"]
    assert len(set(targets)) == 2 and all(t in function.labels for t in targets)
    assert function.instructions[-1].operands[1] == function.instructions[0].operands[0]
    written = {i.operands[0].name for i in function.instructions if i.name == "mov"}
    assert len(written) == 4


def test_lines_and_inlined_calls() -> None:
    text = """.loc 1 10 3
    .reg .b32 %r<3>; mov.u32 %r1, 1;
    .loc 2 5 7, function_name $info, inlined_at 1 22 9
    add.s32 %r1, %r1, %r1;
    .loc 1 0 0
    add.s32 %r1, %r1, 1;"""
    places = [(i.location.file, i.location.line, i.location.inlined) for i in body(text)]
    assert places == [(1, 10, ()), (2, 5, ((1, 22),)), (2, 5, ((1, 22),))]


def test_variables_and_parameters() -> None:
    text = """
.extern .shared .align 128 .b8 dynamic[];
.const .align 4 .b32 table[4] = {1, -2, 0f3F800000};
.visible .global .align 8 .u64 link = generic(table);
.global .align 1 .b8 text[6] = {104, 101, 108, 108, 111, 0};
.file 1 "folder/kernel.cu"
.visible .entry k(.param .u64 .ptr .global .align 16 x, .param .align 64 .b8 map[128], .param .f32 scale)
.reqntid 128, 1, 1
{ ret; }
.section .debug_str { info: .b8 1,2,3 }
"""
    module = parse(HEAD + text)
    kernel = module.functions["k"]
    assert [(p.name, p.size, p.align, p.type) for p in kernel.parameters] == [
        ("x", 8, 8, "u64"),
        ("map", 128, 64, "b8"),
        ("scale", 4, 4, "f32"),
    ]
    assert kernel.required_threads == (128, 1, 1) and module.files == {1: "folder/kernel.cu"}
    assert module.dynamic_shared == {"dynamic": 128} and module.variables["table"].size == 16
    loaded = load(HEAD + text)
    data = {s.hulls[0].name.split()[-1]: s.data for s in loaded.segments}
    assert data["table"][:16].view(np.uint32).tolist() == [1, 2**32 - 2, 0x3F800000, 0]
    assert bytes(data["text"][:6]) == b"hello\0"
    assert data["link"][:8].view(np.int64)[0] == loaded.addresses["table"]


def test_unknown_text() -> None:
    with pytest.raises(Unsupported, match="frobnicate"):
        body(".frobnicate 3;")
    with pytest.raises(Unsupported, match="ends inside"):
        parse(HEAD + ".visible .entry k() { ret;")
    with pytest.raises(EmulatorError) as caught:
        load(HEAD + ".visible .entry k() {\n.loc 1 7 1\n.reg .b32 %r<2>; frobnicate.b32 %r1; ret; }").kernel(
            "k"
        ).launch(1, 32, [])
    assert caught.value.kind == "unsupported" and "frobnicate.b32" in str(caught.value)
    assert caught.value.line == 7 and caught.value.instruction == "frobnicate.b32 %r1"

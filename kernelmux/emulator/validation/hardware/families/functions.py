"""Approximate functions: tables and polynomials in hardware, whose bits the ISA does not promise."""

from kernelmux.emulator.validation.hardware.model import InstructionCase, simple

NARROW = {"ex2": ("f16", "f16x2", "ftz.bf16", "ftz.bf16x2"), "tanh": ("f16", "f16x2", "bf16", "bf16x2")}


def _single(op: str, kind: str, flushing: tuple[str, ...] = ("", ".ftz")) -> list[InstructionCase]:
    return [simple(f"{op}.approx f32", f"{op}.approx{more}.f32", kind, 1, "f32") for more in flushing]


def _narrow(op: str) -> list[InstructionCase]:
    return [
        simple(f"{op}.approx f16, bf16", f"{op}.approx.{kind}", kind.removeprefix("ftz."), 1) for kind in NARROW[op]
    ]


def _quotients() -> list[InstructionCase]:
    return [
        simple(f"div.{how} f32", f"div.{how}{more}.f32", "f32", 2)
        for how in ("approx", "full")
        for more in ("", ".ftz")
    ]


CASES = (
    *_quotients(),
    *(case for op in ("rcp", "sqrt", "rsqrt", "lg2") for case in _single(op, "f32")),
    *_single("ex2", "power"),
    *_single("sin", "angle"),
    *_single("cos", "angle"),
    *_single("tanh", "angle", ("",)),
    *_narrow("ex2"),
    *_narrow("tanh"),
    simple("rcp.approx f64", "rcp.approx.ftz.f64", "f64", 1),
    simple("rsqrt.approx f64", "rsqrt.approx.f64", "f64", 1),
)

"""What an operator means: the vocabulary of a spec, from here, and what binds a call to it."""

from kernelmux.registry.spec.gradient import (
    Composed,
    Gradient,
    NoGradient,
)
from kernelmux.registry.spec.metamorphic import (
    BatchInvariant,
    PermutationInvariant,
    ShiftInvariant,
)
from kernelmux.registry.spec.op_spec import (
    SPECIAL,
    NoExact,
    OpSpec,
    SpecialValues,
)
from kernelmux.registry.spec.signature import (
    REQUIRED,
    Axis,
    Call,
    Constraint,
    Output,
    Scalar,
    Tensor,
    exact_arguments,
)
from kernelmux.registry.spec.value_domains import (
    Computed,
    Count,
    Domain,
    Index,
    LogProbabilities,
    Positive,
    Real,
)

__all__ = [
    "REQUIRED",
    "SPECIAL",
    "Axis",
    "BatchInvariant",
    "Call",
    "Composed",
    "Computed",
    "Constraint",
    "Count",
    "Domain",
    "Gradient",
    "Index",
    "LogProbabilities",
    "NoExact",
    "NoGradient",
    "OpSpec",
    "Output",
    "PermutationInvariant",
    "Positive",
    "Real",
    "Scalar",
    "ShiftInvariant",
    "SpecialValues",
    "Tensor",
    "exact_arguments",
]

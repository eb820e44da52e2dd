"""The text of a decision, word by word: it is what a user reads when a call does not run where it should."""

import pytest
import torch

from kernelmux.registry import catalog
from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import requests
from kernelmux.registry.choice.decision import amount
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.spec.conditions import Aligned, AtLeast, Capability, Condition, Dtypes, Multiple, OneOf
from kernelmux.registry.tests import made_up

AUTO = """\
softmax: x fp32[4, 1000] strides (1001, 1), axis=1, scale=1.0 on cpu
  requested: auto (from auto)
  chosen: plain/eager, as swift, steady cannot run this call
     swift/rows                   no: N = 1000, needs N <= 64
     swift/whole                  no: x is fp32, needs x in fp16/bf16  -> pass x as fp16 or bf16
                                  no: N = 1000, needs a multiple of 4096  -> pad N to 4096
                                  no: scale = 1.0, needs scale in {0.5, 2.0}
                                      -> pass scale=0.5 or scale=2.0
     steady/rows                  no: x has a stride of 1001 elements, needs a multiple of 4
                                      -> x.contiguous() would satisfy this
     other                        no: has no implementation of softmax
  -> plain/eager                  yes
     closed                       no: the package closed is not installed"""

ONE = """\
softmax: x fp32[4, 16] strides (1, 4), axis=1, scale=1.0 on cpu
  requested: swift (from call argument; strict)
  chosen: swift/rows
  -> swift/rows                   yes (copies x first, 256 bytes)
     swift/whole                  no: x is fp32, needs x in fp16/bf16  -> pass x as fp16 or bf16
                                  no: N = 16, needs a multiple of 4096  -> pad N to 4096
                                  no: scale = 1.0, needs scale in {0.5, 2.0}
                                      -> pass scale=0.5 or scale=2.0
     steady/rows                  yes (not asked for)
     closed                       no: the package closed is not installed
     plain/eager                  yes (not asked for)
     other                        no: has no implementation of softmax"""

REFUSAL = """\
no requested backend can run this call
softmax: x fp32[4, 5], axis=1, scale=1.0 on cpu
  requested: closed, swift/rows (from call argument)
  chosen: none, no variant supports this call
     closed                       no: the package closed is not installed
     swift/rows                   no: N = 5, needs a multiple of 8  -> pad N to 8
     swift/whole                  no: x is fp32, needs x in fp16/bf16  -> pass x as fp16 or bf16
                                  no: N = 5, needs a multiple of 4096  -> pad N to 4096
                                  no: scale = 1.0, needs scale in {0.5, 2.0}  -> pass scale=0.5 or scale=2.0
     steady/rows                  no: x has a stride of 5 elements, needs a multiple of 4  -> pad the last axis of x to 8
     plain/eager                  yes (not asked for)
     other                        no: has no implementation of softmax
  try: backend="plain/eager\""""


@pytest.fixture(autouse=True)
def backends(monkeypatch):
    made_up.install(monkeypatch, made_up.BACKENDS)


def test_auto_says_what_it_passed_over_and_what_would_satisfy_each_condition():
    assert str(dispatch.explain("softmax", torch.zeros(4, 1001)[:, :1000])) == AUTO


def test_copies_are_named_with_their_bytes_and_what_was_not_asked_for_is_said():
    assert str(dispatch.explain("softmax", torch.zeros(16, 4).t(), backend="swift")) == ONE


def test_a_refusal_keeps_each_condition_on_one_line():
    with pytest.raises(UnsupportedError) as caught:
        dispatch.function("softmax")(torch.zeros(4, 5), backend="closed,swift/rows")
    assert str(caught.value) == REFUSAL


def test_a_long_reason_goes_on_below_the_variant(monkeypatch):
    lack = "the library libnowhere.so.7 was not found in any folder of the search path\nand it is needed, " * 2
    made_up.install(monkeypatch, {**made_up.BACKENDS, "closed": (made_up.home("closed", 50, lack), {})})
    lines = str(dispatch.explain("softmax", torch.zeros(3, 4), backend="plain")).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("     closed"))
    assert lines[start].startswith(f"     {'closed':<28} no: the library") and lines[start + 1].startswith(" " * 38)
    assert max(map(len, lines)) <= 100 and "".join(lines).count("libnowhere.so.7") == 2


def test_a_variant_that_is_asked_for_twice_has_one_line():
    text = str(dispatch.explain("softmax", torch.zeros(4, 5), backend="swift/rows,swift,plain"))
    assert text.count("swift/rows     ") == 1 and "chosen: plain/eager, as swift/rows, swift cannot" in text


def test_a_shape_without_data_names_the_gpu_it_is_imagined_on():
    spec = catalog.spec("softmax")
    call = spec.hypothetical(spec.case("x=4x8:bf16"), device=torch.device("cuda"), capability=(9, 0))
    text = str(dispatch.decide(call, requests.AUTO, thorough=True, elsewhere=True))
    assert text.startswith("softmax: x bf16[4, 8], axis=1, scale=1.0 on cuda (sm_90)\n")


def test_a_question_about_another_gpu_survives_a_backend_that_cannot_be_loaded(monkeypatch):
    def backend(name):
        if name == "swift":
            raise requests.registered.BackendUnavailable("swift cannot be imported")
        return made_up.BACKENDS[name][0]

    monkeypatch.setattr(requests.registered, "backend", backend)
    monkeypatch.setattr(
        requests.registered, "variants", lambda name, op: backend(name) and made_up.BACKENDS[name][1].get(op, {})
    )
    spec = catalog.spec("softmax")
    call = spec.hypothetical(spec.case("x=4x8"), device=torch.device("cuda"), capability=(9, 0))
    text = str(dispatch.decide(call, requests.AUTO, thorough=True, elsewhere=True))
    assert "chosen: steady/rows" in text and "swift                        no: swift cannot be imported" in text


REMEDIES: dict[str, tuple[Condition, torch.Tensor, float]] = {
    "pass x as fp16 or bf16": (Dtypes("x", torch.float16, torch.bfloat16), torch.zeros(4, 8), 1.0),
    "pass scale=2.0": (OneOf("scale", 2.0), torch.zeros(4, 8), 1.0),
    "pad N to 16": (AtLeast("N", 16), torch.zeros(4, 8), 1.0),
    "pad N to 12": (Multiple("N", 6), torch.zeros(4, 8), 1.0),
    "pad the last axis of x to 8": (Aligned("x"), torch.zeros(4, 5), 1.0),
    "x.contiguous() would satisfy this": (Aligned("x"), torch.zeros(4, 9)[:, :8], 1.0),
    "x.clone() would satisfy this": (Aligned("x"), torch.zeros(9)[1:].reshape(1, 8), 1.0),
    "": (OneOf("N", 16), torch.zeros(4, 8), 1.0),
}


@pytest.mark.parametrize("remedy", REMEDIES)
def test_what_a_condition_says_would_satisfy_it_does(remedy):
    condition, x, scale = REMEDIES[remedy]
    (found,) = Implementation(made_up.softmax, "", (condition,)).unmet(catalog.spec("softmax").bind(x, scale=scale))
    assert found.remedy == remedy and str(found) == condition.check(catalog.spec("softmax").bind(x, scale=scale))
    assert found.required and found.kind == condition.text
    made = {
        "pass x as fp16 or bf16": (x.half(), scale),
        "pass scale=2.0": (x, 2.0),
        "pad N to 16": (torch.zeros(4, 16), scale),
        "pad N to 12": (torch.zeros(4, 12), scale),
        "pad the last axis of x to 8": (torch.zeros(4, 8), scale),
        "x.contiguous() would satisfy this": (x.contiguous(), scale),
        "x.clone() would satisfy this": (x.clone(), scale),
        "": (torch.zeros(4, 16), scale),
    }[remedy]
    assert condition.check(catalog.spec("softmax").bind(made[0], scale=made[1])) is None


def test_another_gpu_is_no_remedy():
    spec = catalog.spec("softmax")
    call = spec.hypothetical(spec.case("x=4x8"), device=torch.device("cuda"), capability=(8, 0))
    (found,) = Implementation(made_up.softmax, "", (Capability((9, 0)),)).unmet(call)
    assert str(found) == "the GPU is sm_80, needs sm_90 or newer" and not found.remedy


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (1 << 52, "4096.0 TiB")],
)
def test_amounts(size, text):
    assert amount(size) == text

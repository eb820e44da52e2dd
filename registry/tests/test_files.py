"""Names of files for GPUs, and tables between markers."""

import pytest

from kernelmux.registry.files import between, file_stem

BEGIN, END = "<!-- x -->", "<!-- /x -->"


def test_the_file_name_of_a_gpu() -> None:
    assert file_stem("NVIDIA H200") == "nvidia_h200"
    assert file_stem("NVIDIA GeForce RTX 4090 (Laptop)") == "nvidia_geforce_rtx_4090_laptop"


def test_what_stands_between_markers_is_replaced_and_nothing_else() -> None:
    assert between(f"a\n{BEGIN}\nold\n{END}\nb {END}", BEGIN, END, "new") == f"a\n{BEGIN}\nnew\n{END}\nb {END}"


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END} {BEGIN}"])
def test_a_document_without_the_markers_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected <!-- x --> \.\.\. <!-- /x -->"):
        between(text, BEGIN, END, "new")

"""The leading axes of the factors of a product: as two strides, or as more rows."""

import pytest
import torch

from kernelmux.registry.util import batch_strides

r = torch.randn


def by_hand(p: batch_strides.BatchedProduct, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """All products, each from where the strides say that its factors are."""
    made = []
    for number in range(p.products):
        at = [0, 0]
        if p.batch:
            place = divmod(number, p.batch.inner)
            at = [sum(i * s for i, s in zip(place, strides, strict=True)) for strides in (p.batch.a, p.batch.b)]
        left = a.as_strided((p.M, p.K), p.a_strides, a.storage_offset() + at[0])
        right = b.as_strided((p.K, p.N), p.b_strides, b.storage_offset() + at[1])
        made.append(left @ right)
    return torch.stack(made)


@pytest.mark.parametrize(
    ("a", "b", "products", "M"),
    [
        (r(4, 3), r(3, 5), 1, 4),
        (r(2, 4, 3), r(3, 5), 1, 8),
        (r(2, 7, 4, 3), r(3, 5), 1, 56),
        (r(2, 4, 3), r(2, 3, 5), 2, 4),
        (r(1, 4, 3), r(1, 3, 5), 1, 4),
        (r(2, 4, 5, 3).transpose(1, 2), r(2, 6, 5, 3).transpose(1, 2).mT, 10, 4),  # [B M H D], as attention has it
        (r(2, 3, 4).mT, r(3, 5), 2, 4),
        (r(6, 4, 3)[::2], r(3, 5), 3, 4),
        (r(2, 3, 4, 3).transpose(0, 1), r(3, 2, 3, 5), 6, 4),
        (r(1, 3).expand(4, 2, 1, 3), r(3, 5), 8, 1),  # rows that share their memory are no matrix
        (r(3, 5).expand(4, 3, 5), r(4, 5, 2), 4, 3),
    ],
)
def test_a_product_is_where_its_strides_say(a, b, products, M):
    found = batch_strides.product(a.shape, a.stride(), b.shape, b.stride())
    assert found and (found.products, found.M) == (products, M)
    want = torch.matmul(a, b)
    torch.testing.assert_close(by_hand(found, a, b).view(want.shape), want)


def test_what_takes_more_strides_is_copied():
    a, b = r(2, 3, 4, 5, 6).permute(2, 1, 0, 3, 4), r(4, 3, 2, 6, 2)
    assert batch_strides.product(a.shape, a.stride(), b.shape, b.stride()) is None
    left, right = batch_strides.readable(a, b)
    assert left.is_contiguous() and right is b
    assert batch_strides.readable(b.mT, a.mT)[0].data_ptr() != b.data_ptr()


def test_axes_that_follow_from_one_another_are_one():
    a, b = r(2, 3, 4, 5, 6), r(2, 3, 4, 6, 2)
    assert batch_strides.readable(a, b)[0] is a
    assert batch_strides.merged([(2, 12), (1, 99), (3, 4), (4, 1)]) == [(24, 1)]
    assert batch_strides.merged([(2, 0, 12), (3, 0, 4)]) == [(6, 0, 4)]

"""A convolution in Triton with a defect; imported where it is launched, so that the family is known without Triton."""

import triton
import triton.language as tl


@triton.jit
def conv2d(
    y_ptr, x_ptr, weight_ptr, bias_ptr, CHANNELS, C, H, W, P, Q, R, S, size, stride_h, stride_w, padding_h, padding_w,
    dilation_h, dilation_w, DEFECT: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Contiguous tensors; elements of y [N, O, P, Q] one after the other."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    q = at % Q
    p = at // Q % P
    o = at // (Q * P) % CHANNELS
    n = at // (Q * P * CHANNELS)
    acc = tl.zeros([BLOCK], tl.float32)
    for c in range(C):
        for r in range(R):
            for s in range(S):
                h = p * stride_h - padding_h + r * dilation_h
                w = q * stride_w - padding_w + s * dilation_w
                if DEFECT == "column_before":  # the elements of a row behind another one's
                    inside = (h >= 0) & (h < H) & (w >= -1) & (w < W) & (h * W + w >= 0)
                elif DEFECT == "nearest":  # what lies outside is the element at the border
                    h = tl.minimum(tl.maximum(h, 0), H - 1)
                    w = tl.minimum(tl.maximum(w, 0), W - 1)
                    inside = w < W
                elif DEFECT == "first_row":
                    inside = (h > 0) & (h < H) & (w >= 0) & (w < W)
                else:
                    inside = (h >= 0) & (h < H) & (w >= 0) & (w < W)
                x = tl.load(x_ptr + ((n * C + c) * H + h) * W + w, mask=inside & (at < size), other=0.0)
                weight = tl.load(weight_ptr + ((o * C + c) * R + r) * S + s, mask=at < size, other=0.0)
                acc += x.to(tl.float32) * weight.to(tl.float32)
    if BIAS:
        times = 2 if DEFECT == "bias_twice" else 1
        acc += times * tl.load(bias_ptr + o, mask=at < size, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=at < size)

"""Tensor maps, im2col and swizzles: where the copies of TMA find their elements."""

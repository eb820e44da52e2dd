"""Attacks through files: the suite's own, those that the next process reads, those in which tensors are handed over."""

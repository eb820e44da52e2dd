"""Losses over rows of logits, and their targets."""

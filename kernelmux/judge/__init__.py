"""Judges code that nobody trusts, and what such a judge is tried with: `attacks/` must fail, `honest/` must pass."""

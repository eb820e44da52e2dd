"""Broken kernels that the suite must catch, each by the check it belongs to, and sound ones that it must pass.

A file per operator, or two where one would be too long. In it `mutant = Mutants("softmax")`, and over each kernel
`@mutant(idea, family=..., caught_by=...)`, which names the check that catches it; one without `caught_by` is sound, however
odd it looks. `only` and `shown_by` narrow where a defect shows (`_mutant.Mutants.add`). The mutants of a family are a
backend of their own, `mutants_<family>`; `_mutant.FAMILIES` says what the families are.
"""

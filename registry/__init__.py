"""WHAT every operator means, and WHICH backend runs it.

The vocabulary of a spec: `spec`, `numerics`, `cases`, `cost`, `conditions`, `errors`; one operator per file in `ops/`.
The run-time half: `backend` (who can compute it), `selection` (who was asked), `dispatch` (who runs, and why).
"""

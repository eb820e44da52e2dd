"""WHAT every operator means, and WHICH backend runs it.

The vocabulary of a spec: `spec`, `numerics`, `cases`, `cost`, `conditions`, `errors`; one operator per file in `ops/`.
The run-time half: `backend` (who can compute it; `plugins`, `registration`), `selection` (who was asked; `requests`,
`scope`), `choice` (who runs, and why; `tracing`: what surrounds a call), `dispatch` (the call).
"""

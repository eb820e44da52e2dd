"""Many machines: the plan of one driver over the nodes of a Ray cluster (docs/cluster.md; the extra `cluster`).

Each node has one actor, `agent`, which takes all of it and runs a `LocalPool` there; `engine` is the driver's side, and
`shipping` the sources that travel.
"""

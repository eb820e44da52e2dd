"""Runs the items of every suite: in worker processes of this machine, on all of its GPUs, or over the nodes of a Ray
cluster.

A suite brings items (`item.WorkItem`), a row for each that ends (JSON), and a function that runs items in a worker process
(`item.Suite`). `run.execute` does the rest: which worker runs which item when (`plan`), what becomes of a worker that
dies, hangs or loses its GPU (`run`, `local_pool`), and a file of rows that is whole at every moment (`results`).
"""

"""What ran: counters, logs, profiler ranges, and what is told of a call that fails on a GPU."""

"""What a run consists of and who runs it: the plan, its items in worker processes, their time, what is expected."""

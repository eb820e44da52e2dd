"""What perf brings to the common runner (`kernelmux.runner`): items, their rows, and what a worker process does."""

"""What a candidate on a GPU needs besides: memory that both processes have, calls in an order of work, calls that are timed."""

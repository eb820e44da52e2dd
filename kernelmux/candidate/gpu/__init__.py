"""What a candidate on a GPU needs: memory that both processes have, calls among other work, calls that are timed."""

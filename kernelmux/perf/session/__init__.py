"""The processes that time rows: the supervisor, the harness of a worker, its tests, compilation ahead of them."""

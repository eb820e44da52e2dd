"""Which rows a run has, and how many fit into its memory and its minutes."""

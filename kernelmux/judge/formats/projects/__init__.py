"""One module per project whose files are read: `find(folder)` for its tasks, and a `Problem` that runs a reference."""

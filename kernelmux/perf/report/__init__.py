"""Shows results: tables in the terminal, Markdown, one HTML page, what changed between runs, a record for a pull request.

A report reads results and changes none. Words, columns and groups are in `perf.wording`, pictures in `perf.pictures`.
"""

"""Shows results: tables in the terminal, Markdown, one HTML page, charts, and what changed between runs.

`groups` puts results together that do the same work, and finds the fastest of them; `noise` reads a run with A/A;
`wording` turns numbers into texts; `columns` fits a table to a width; `figures` holds what all pictures have in common.
`tables`, `markdown`, `page` with `charts`, `picture`, `compare` and `verdicts` each make one kind of output. A report
reads results and changes none.
"""

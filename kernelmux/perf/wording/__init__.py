"""Words and columns that reports share: numbers as a reader wants them, results in groups, what is noise."""

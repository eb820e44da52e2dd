"""What a trial gets: a call with its values, dtypes, shapes and places in memory, its reference and its bound."""

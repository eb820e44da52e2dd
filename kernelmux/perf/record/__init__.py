"""The file of a run, and the record of each GPU, with the rows that are of the sources as they are."""

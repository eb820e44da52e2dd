"""Pages that are written from the specs and the records, and the program that writes them; the others are typed."""

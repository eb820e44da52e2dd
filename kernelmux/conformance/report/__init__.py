"""What is shown and written of a run: progress, marks, matrix, page, JUnit, the results as lines."""

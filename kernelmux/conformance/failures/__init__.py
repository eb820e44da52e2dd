"""What is said and kept of a failure: its text, its likely cause and source, its tensors, a map of its errors."""

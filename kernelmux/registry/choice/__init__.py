"""Who runs a call: what was asked for, by whom, and the decision with its reasons."""

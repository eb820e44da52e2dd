"""Attacks that work beside the call: before it, after it, in other threads, in other processes, on other streams."""

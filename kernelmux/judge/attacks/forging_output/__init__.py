"""Attacks that hand over something else than a result: reports, messages, objects, and memory that nothing wrote."""

"""Attacks that are right for what they expect a judge to ask, and wrong elsewhere."""

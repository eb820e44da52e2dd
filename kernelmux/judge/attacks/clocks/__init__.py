"""Attacks on the time that is measured, or that tell by the clock when they are judged."""

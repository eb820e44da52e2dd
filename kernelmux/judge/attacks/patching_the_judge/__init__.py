"""Attacks that change the code or the memory of whatever judges them."""

"""Attacks that compute once and hand the result out again."""

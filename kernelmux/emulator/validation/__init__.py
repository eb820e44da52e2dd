"""Checks that the emulator is right and fast. Part of a checkout, not of the wheel."""

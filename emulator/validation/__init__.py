"""What shows that the emulator is right and fast. No user needs it: it is part of a checkout and of no wheel."""

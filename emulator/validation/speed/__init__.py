"""How long launches take on the emulator, and on another implementation of the same interface."""

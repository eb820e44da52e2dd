"""How long launches take on the emulator."""

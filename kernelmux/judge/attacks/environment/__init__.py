"""Attacks on what surrounds a call: variables, flags, generators, the dispatcher of torch, the network."""

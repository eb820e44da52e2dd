"""The memories of a launch, what an access does there, and which races and uninitialised reads it is part of."""

"""The memories of a launch: what an access does there, and the checks for races and uninitialised reads."""

"""How a row is timed and checked: clocks, inputs, samples, ceilings, the part of the output that is verified."""

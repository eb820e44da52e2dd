"""What a check works with: the probe, which runs a trial and judges the answer, and what surrounds the call."""

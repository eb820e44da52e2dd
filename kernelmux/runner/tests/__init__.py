"""Tests of the runner: real processes of a toy suite, the plan alone, and the plan in simulated time."""

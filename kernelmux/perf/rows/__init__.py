"""A row of a run and what it is made of: its result, its roofline, the machine, options, and their form as JSON."""

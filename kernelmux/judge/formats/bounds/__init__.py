"""How far a result of a task may be off: by the spec of one of our operators, or by an estimate."""

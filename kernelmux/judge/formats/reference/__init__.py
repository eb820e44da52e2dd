"""The process of references: it runs strangers' task files behind walls, and hands over inputs and right results."""

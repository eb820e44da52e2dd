"""WHO computes: one package per backend, one module per operator in it. The packages never import one another."""

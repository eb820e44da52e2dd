"""The specs, one operator per file; `kernelmux.registry.catalog` finds them by file name."""

"""The command `kernelmux perf`, with `--sweep` and `--against`, and `perf.cli.silence`."""

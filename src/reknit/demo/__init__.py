"""A small real training job and the acts that break it: what `reknit demo` shows and the benchmarks time."""

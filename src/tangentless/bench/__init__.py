"""Benchmarks that need more than a clock: GPUs, held against their own ceilings and against PyTorch, in one run."""

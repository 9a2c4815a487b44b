"""Benchmarks of the cuda backend, which compare it with the limits of the GPU and with PyTorch in the same run."""

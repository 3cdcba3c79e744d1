"""The figures of experiments and runs by name, and the reads that they are drawn from."""

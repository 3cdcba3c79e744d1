"""`python -m tests.faults`: inject faults into the real server, nodes and Slurm, and check what they left behind."""

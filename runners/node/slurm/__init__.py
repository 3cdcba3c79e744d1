"""Slurm as a way to get nodes: submit a run as a job, find it again, cancel it, translate Slurm's words."""

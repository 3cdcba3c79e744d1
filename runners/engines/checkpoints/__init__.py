"""Checkpoints of engines: complete or absent on disk, written while the training goes on, found again by the next
attempt."""

"""Batches of nodes and scripts -> lab and series, each exactly once."""

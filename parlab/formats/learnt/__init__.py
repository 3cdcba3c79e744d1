"""Formats without a reader of their own, learnt from a file."""

"""Experiments and runs over HTTP."""

"""Rows of published measurements as jobs."""

"""Layouts and clusters compared: which is fastest, what fits, what it costs."""

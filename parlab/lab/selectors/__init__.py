"""Queries for pages, figures, reports and the API, which return plain values."""

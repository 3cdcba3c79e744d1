"""Imported files and the formats that the team taught parlab."""

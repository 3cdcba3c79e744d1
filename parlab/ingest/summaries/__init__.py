"""The summary of an attempt, computed from its series."""

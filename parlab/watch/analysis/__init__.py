"""Change points and histories of results; pure."""

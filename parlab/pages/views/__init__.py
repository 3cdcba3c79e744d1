"""One view for each address."""

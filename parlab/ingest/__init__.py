"""What nodes, scripts and people bring in -> lab and series."""

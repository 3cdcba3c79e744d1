"""What runs on a node as long as it is up: the daemon, its runs, their directories."""

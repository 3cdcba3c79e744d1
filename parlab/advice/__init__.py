"""Where the time of a step goes, and what to change: plain data to plain data, pure."""

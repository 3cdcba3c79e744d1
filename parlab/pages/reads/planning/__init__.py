"""Plans, their layouts side by side, and simulated timelines."""

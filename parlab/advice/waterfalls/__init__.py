"""Where the time of a step goes, as terms that add up."""

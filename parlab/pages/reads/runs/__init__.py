"""What the pages of one run read."""

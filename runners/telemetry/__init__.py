"""What the hardware of a node is and does."""

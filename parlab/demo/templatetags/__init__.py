"""Template tags of the demo."""

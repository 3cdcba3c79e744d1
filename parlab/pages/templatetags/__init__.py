"""Template tags: numbers with units, parts of lists, the frame of all pages."""

"""`make demo`: a new demo's published documents, and a small sweep for each engine."""

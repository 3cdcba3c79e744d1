"""The panels of an experiment as SVG: each run has its own look, the same in all of them."""

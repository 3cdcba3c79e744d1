"""Reports of experiments: plain data in, text out."""

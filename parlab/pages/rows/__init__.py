"""Rows with formatted texts for templates, made from the plain values of `lab.selectors`."""

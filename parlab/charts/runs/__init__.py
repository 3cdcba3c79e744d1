"""Figures of one run or one series over time."""

"""Histories and tables that other trackers export."""

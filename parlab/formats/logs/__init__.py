"""Logs of trainers, one reader each; registry.py is their table."""

"""Watches: series of results, the days on which they changed, and what changed with them. See docs/use/watch.md."""

"""Address of earlier releases for queued jobs."""

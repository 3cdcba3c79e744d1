"""One small process per attempt: it starts the ranks, keeps what they print, and knows how they ended."""

"""What every request passes: audit, compression, polls, tokens, visits."""

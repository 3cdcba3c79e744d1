"""Parts that several engines train with: data, networks, stages, transfers."""

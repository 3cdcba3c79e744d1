"""Figures of the nodes: their queue, the day of one of them, goodput. Times are Unix seconds."""

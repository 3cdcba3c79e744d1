"""Reads that compare and explain runs: rankings, repeats, waterfalls, advice, inputs of the planner."""

"""What a comparison of runs says and draws: the answer, how sure it is, where the difference comes from."""

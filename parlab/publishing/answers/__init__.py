"""The answer to the question of an experiment, in one sentence, with how sure it is and what to do next."""

"""Studies: a space, a strategy, trials that are ordinary runs.

`space`, `surrogate` and `strategies` are pure and know no database; `services` brings them to runs.
"""

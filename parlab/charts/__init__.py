"""Plain data -> Plotly figure, in one theme. Pure; registry.py is the table of an experiment's figures."""

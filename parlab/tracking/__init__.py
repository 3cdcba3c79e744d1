"""Runs that scripts report from outside: MLflow's protocol and the services behind it."""

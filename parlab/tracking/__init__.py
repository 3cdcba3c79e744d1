"""Runs that scripts report from outside: the protocols of MLflow and W&B, and the services behind them."""

"""Accounts, nodes, reports, watches and what people keep, over HTTP."""

"""Nodes that a batch system gives: an attempt is one job, whose supervisors share the daemon's state directory."""

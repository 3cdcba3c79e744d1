"""Kubernetes as a way to get nodes: a run becomes pods, which are found again, cancelled and ended in its words."""

"""Pods that share no volume with their controller: a Secret is their order, and they post to the server."""

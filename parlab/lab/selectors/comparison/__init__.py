"""How runs differ: in their settings, in their environments, in their results."""

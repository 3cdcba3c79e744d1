"""The sweep builder: a plain form of fields and axes, and what the server makes of it."""

"""The command `parlab`."""

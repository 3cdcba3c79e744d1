"""The server as objects: `parlab.Api`."""

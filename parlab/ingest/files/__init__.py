"""The import of files: received -> readings -> stored."""

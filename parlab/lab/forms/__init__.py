"""The form of a configuration."""

"""REST: validates, calls a service, serialises. See docs/use/api.md."""

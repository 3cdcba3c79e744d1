"""The documentation: its tables, its links, and the site that `make docs` builds."""

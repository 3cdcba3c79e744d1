"""Resolves the directives of reports, publishes versions, exports; draws figures for pages, API and reports."""

"""Documents with tables, prose and logs in them: Markdown, reStructuredText, HTML, plain tables."""

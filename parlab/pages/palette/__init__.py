"""The palette: one search for runs, pages and actions, in a dialog on every page."""

"""What pages and the API publish."""

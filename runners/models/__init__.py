"""The networks that engines train."""

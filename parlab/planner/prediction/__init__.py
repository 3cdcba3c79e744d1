"""Time and memory of a job, part by part."""

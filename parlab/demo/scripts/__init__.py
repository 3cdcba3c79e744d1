"""Small training scripts that report to the demo, each in one of the four ways of docs/use/logging.md."""

"""`/metrics`: numbers of the server and of its runs, in the text format of Prometheus."""

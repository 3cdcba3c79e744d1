"""What the page Cluster and the strip of Home show: nodes as squares, their runs, the queue, goodput."""

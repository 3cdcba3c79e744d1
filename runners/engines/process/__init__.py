"""What every engine does around its work: rank, process group, events, timers."""

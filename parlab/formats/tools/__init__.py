"""Output of measuring tools: collectives, links, GPUs, serving, MLPerf, autotuners."""

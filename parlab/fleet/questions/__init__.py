"""Questions about a cluster: forms that become configurations and sweeps."""

"""From a configuration to the processes of a run on its nodes."""

"""The upgrade of a server and a node while a run trains."""

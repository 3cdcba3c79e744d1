"""Everything that runs on a node. Imports neither Django nor the server; of parlab, `parlab.client` alone."""

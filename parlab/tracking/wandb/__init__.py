"""Runs over the protocol of W&B's clients: GraphQL by the name of the operation, file_stream, uploads.

`urls.py` lists what is served.
"""

"""The version of parlab: of the command, the server and the daemon."""

VERSION = "0.2.0"

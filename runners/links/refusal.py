"""What a node says to a configuration whose links it cannot give."""

from __future__ import annotations

from runners.config import RunConfig
from runners.links import interface
from runners.links.ability import ability
from runners.links.namespaces import MAX_HOSTS


def refusal(config: RunConfig) -> str:
    """Say why this node cannot give the links of a configuration: field, reason, remedy; empty where it can."""
    if config.network.apply == "interface":
        return interface.why_not(config.network)
    if config.network.apply == "emulate":
        if config.num_hosts > MAX_HOSTS:
            return f"network.apply emulate joins at most {MAX_HOSTS} ranks or nodes, these are {config.num_hosts}"
        if why_not := ability().why_not:
            return f"network.apply emulate: {why_not}"
    return ""

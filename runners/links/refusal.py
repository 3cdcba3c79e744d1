"""Check of a configuration's links against this node."""

from __future__ import annotations

from runners.config import RunConfig
from runners.links import interface
from runners.links.ability import REMEDY, ability
from runners.links.namespaces import MAX_HOSTS


def no_links(account: str) -> str:
    """Return why runs of another account than root cannot have slower links, and the remedy."""
    return f"slower links require root, and the runs of this node have the account {account} (--run-as); {REMEDY}"


def refusal(config: RunConfig) -> str:
    """Return why this node cannot provide the links of a configuration: field, reason, remedy; empty if it can."""
    if config.network.apply == "interface":
        return interface.why_not(config.network)
    if config.network.apply == "emulate":
        if config.num_hosts > MAX_HOSTS:
            return (
                f"network.apply emulate supports at most {MAX_HOSTS} ranks or nodes, not {config.num_hosts};"
                " use fewer ranks, or network.apply none"
            )
        if why_not := ability().why_not:
            return f"network.apply emulate: {why_not}"
    return ""

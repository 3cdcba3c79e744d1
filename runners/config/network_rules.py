"""What is wrong with links, and with times that stand for computing."""

from __future__ import annotations

from collections.abc import Iterator

from .engines import engine_names
from .fields import RunFields
from .problems import Problem


def network_problems(config: RunFields) -> Iterator[Problem]:
    """What is wrong with the links of a configuration."""
    network = config.network
    if network.apply == "none":
        yield from _unused(config)
        return
    if network.jitter_ms > network.delay_ms:
        message = f"jitter_ms {network.jitter_ms:g} is more than delay_ms {network.delay_ms:g}; use at most that"
        yield Problem("network.jitter_ms", network.jitter_ms, message)
    if network.apply == "interface":
        yield from _interface_problems(config)
        return
    if network.interface is not None:
        message = f"interface {network.interface} is for apply interface, not emulate; leave it empty"
        yield Problem("network.interface", network.interface, message)
    if config.engine.starts_its_own_ranks:
        name = config.engine.name
        message = f"engine {name} starts its own processes, outside the emulated links; use none, or another engine"
        yield Problem("network.apply", "emulate", message)
    elif config.num_hosts < 2:
        message = "one rank has no links; use apply none, or more ranks"
        yield Problem("network.apply", "emulate", message)
    yield from _link_problems(config)


def _unused(config: RunFields) -> Iterator[Problem]:
    network = config.network
    for name, default in type(network)().model_dump().items():
        value = getattr(network, name)
        if name != "apply" and value != default:
            message = f"{name} has no effect with apply none; use apply emulate or interface, or leave it out"
            yield Problem(f"network.{name}", str(value) if name == "links" else value, message)


def _interface_problems(config: RunFields) -> Iterator[Problem]:
    network = config.network
    if network.interface is None:
        message = "apply interface needs the name of one; use one that `ip link` shows, like eth0"
        yield Problem("network.interface", None, message)
    elif network.interface == "lo":
        message = "interface lo carries all that this machine says to itself; use apply emulate, or a real interface"
        yield Problem("network.interface", "lo", message)
    if network.links:
        message = "an interface has one setting for all that leaves it; use apply emulate, or no links"
        yield Problem("network.links", len(network.links), message)
    if not (network.delay_ms or network.bandwidth_gbps or network.loss_pct):
        message = "apply interface with neither delay, rate nor loss shapes nothing; give one, or use apply none"
        yield Problem("network.apply", "interface", message)


def _link_problems(config: RunFields) -> Iterator[Problem]:
    last, seen = config.num_hosts - 1, set()
    for number, link in enumerate(config.network.links):
        field, name = f"network.links.{number}", f"link {link.source} -> {link.target}"
        if max(link.source, link.target) > last:
            kind = "nodes" if config.cluster.nodes > 1 else "ranks"
            message = f"{name} leads beyond the {last + 1} {kind}, counted from 0; use 0 to {last}"
            yield Problem(field, name, message)
        elif link.source == link.target:
            yield Problem(field, name, f"{name} is no link; use two different ends")
        elif (link.source, link.target) in seen:
            yield Problem(field, name, f"{name} is given twice; use it once")
        elif link.delay_ms is not None and link.delay_ms < config.network.jitter_ms:
            message = f"jitter_ms {config.network.jitter_ms:g} is more than delay_ms {link.delay_ms:g} of {name}"
            yield Problem(field, link.delay_ms, message + "; use a smaller jitter or a larger delay")
        seen.add((link.source, link.target))


def emulation_problems(config: RunFields) -> Iterator[Problem]:
    """What is wrong with times that stand for computing."""
    times, parallel = config.emulation, config.parallel
    if config.train.compute == "real":
        for name in ("forward_ms", "backward_ms", "source_run"):
            if getattr(times, name) is not None:
                message = f"{name} is for train.compute emulated, not real; leave it empty, or use emulated"
                yield Problem(f"emulation.{name}", str(getattr(times, name)), message)
        return
    if not config.engine.can_emulate_compute:
        choice = " or ".join(engine_names(lambda row: row.can_emulate_compute))
        message = f"compute emulated is for engine {choice}, not {parallel.engine}; use real, or engine {choice}"
        yield Problem("train.compute", "emulated", message)
    if config.device.needs_gpus:
        message = "compute emulated uses no GPU; use device cpu or auto"
        yield Problem("cluster.device", config.device.name, message)
    stages = parallel.pipeline_parallel_size * parallel.virtual_stages
    for name in ("forward_ms", "backward_ms"):
        given = getattr(times, name)
        if given is None and times.source_run is None:
            message = f"compute emulated needs {name}, milliseconds of one micro batch; give a number, or source_run"
            yield Problem(f"emulation.{name}", None, message)
        elif given is not None and len(given) not in (1, stages):
            message = f"{name} has {len(given)} times for {stages} stages; use one, or {stages}"
            yield Problem(f"emulation.{name}", len(given), message)

"""Rules of section network, and of emulated compute."""

from __future__ import annotations

from collections.abc import Iterator

from .engines import engine_names
from .fields import RunFields
from .problems import Problem


def network_problems(config: RunFields) -> Iterator[Problem]:
    """Check the links of a configuration."""
    network = config.network
    if network.apply == "none":
        yield from _unused(config)
        return
    if network.jitter_ms > network.delay_ms:
        jitter, delay = f"{network.jitter_ms:g}", f"{network.delay_ms:g}"
        message = f"jitter_ms {jitter} is greater than delay_ms {delay}; use at most {delay}"
        yield Problem("network.jitter_ms", network.jitter_ms, message)
    if network.apply == "interface":
        yield from _interface_problems(config)
        return
    if network.interface is not None:
        message = f"interface {network.interface} requires apply interface, not emulate; leave it empty"
        yield Problem("network.interface", network.interface, message)
    if config.engine.starts_its_own_ranks:
        name = config.engine.name
        message = f"engine {name} starts its own processes, outside the emulated links; use none, or another engine"
        yield Problem("network.apply", "emulate", message)
    elif config.num_hosts < 2:
        message = "a single rank has no links; use apply none, or more ranks"
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
    if network.interface is None and config.cluster.nodes == 1:
        message = "apply interface requires the name of a network interface; use one that `ip link` lists, like eth0"
        yield Problem("network.interface", None, message)
    elif network.interface == "lo":
        message = "interface lo carries all local traffic of the machine; use apply emulate, or a real interface"
        yield Problem("network.interface", "lo", message)
    if network.links:
        message = "all traffic of an interface has the same delay and rate; use apply emulate, or no links"
        yield Problem("network.links", len(network.links), message)
    if not (network.delay_ms or network.bandwidth_gbps or network.loss_pct):
        message = "apply interface without delay, rate or loss has no effect; set one of them, or use apply none"
        yield Problem("network.apply", "interface", message)


def _link_problems(config: RunFields) -> Iterator[Problem]:
    last, seen_links = config.num_hosts - 1, set()
    for number, link in enumerate(config.network.links):
        field, name = f"network.links.{number}", f"link {link.source} -> {link.target}"
        if max(link.source, link.target) > last:
            kind = "nodes" if config.cluster.nodes > 1 else "ranks"
            message = f"{name} is out of range: there are {last + 1} {kind}, numbered from 0; use 0 to {last}"
            yield Problem(field, name, message)
        elif link.source == link.target:
            yield Problem(field, name, f"{name} connects a rank or node to itself; use two different ends")
        elif (link.source, link.target) in seen_links:
            yield Problem(field, name, f"{name} is listed twice; list it once")
        elif link.delay_ms is not None and link.delay_ms < config.network.jitter_ms:
            message = f"jitter_ms {config.network.jitter_ms:g} is greater than delay_ms {link.delay_ms:g} of {name}"
            yield Problem(field, link.delay_ms, message + "; use a smaller jitter or a larger delay")
        seen_links.add((link.source, link.target))


def emulation_problems(config: RunFields) -> Iterator[Problem]:
    """Check the times of emulated compute."""
    emulation, parallel = config.emulation, config.parallel
    if config.train.compute == "real":
        for name in ("forward_ms", "backward_ms", "source_run"):
            if getattr(emulation, name) is not None:
                message = f"{name} requires train.compute emulated, not real; leave it empty, or use emulated"
                yield Problem(f"emulation.{name}", str(getattr(emulation, name)), message)
        return
    if not config.engine.can_emulate_compute:
        choice = " or ".join(engine_names(lambda row: row.can_emulate_compute))
        message = f"compute emulated requires engine {choice}, not {parallel.engine}; use real, or engine {choice}"
        yield Problem("train.compute", "emulated", message)
    if config.device.needs_gpus:
        message = "compute emulated uses no GPU; use device cpu or auto"
        yield Problem("cluster.device", config.device.name, message)
    stages = parallel.pipeline_parallel_size * parallel.virtual_stages
    for name in ("forward_ms", "backward_ms"):
        durations = getattr(emulation, name)
        if durations is None and emulation.source_run is None:
            message = f"compute emulated requires {name}, the milliseconds of one micro batch; set it, or source_run"
            yield Problem(f"emulation.{name}", None, message)
        elif durations is not None and len(durations) not in (1, stages):
            message = f"{name} has {len(durations)} values for {stages} stages; use 1 value, or {stages}"
            yield Problem(f"emulation.{name}", len(durations), message)

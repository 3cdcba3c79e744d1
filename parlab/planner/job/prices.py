"""List prices of devices by the hour, for a question that states no price."""

from __future__ import annotations

from typing import NamedTuple


class Price(NamedTuple):
    """Price of one device for an hour."""

    per_hour: float
    source: str
    tag: str = "own price"
    """Where it is from and of when, in a few words."""
    offer: str = "on demand"
    currency: str = "USD"
    seen: str = ""
    """When it was read."""
    lost: float = 0.0
    """Share of the time that preemptions cost (0 to 1)."""


def _instance(per_hour: float, gpus: int, name: str, note: str = "") -> Price:
    size = f"{gpus} GPUs" if gpus > 1 else "one GPU"
    source = f"{name} on demand, USD {per_hour:g} an hour for {size}{note}"
    tag = f"{name.partition(' ')[0]} on-demand price{' from before June 2025' if note else ', 2025'}"
    return Price(round(per_hour / gpus, 2), source, tag)


_BEFORE = ", before the price cut of June 2025"


LIST_PRICES: dict[str, Price] = {
    "V100 SXM2 16 GB": _instance(24.48, 8, "AWS p3.16xlarge"),
    "V100 SXM2 32 GB": _instance(31.212, 8, "AWS p3dn.24xlarge"),
    "A100 SXM4 40 GB": _instance(32.7726, 8, "AWS p4d.24xlarge", _BEFORE),
    "A100 SXM4 80 GB": _instance(40.9657, 8, "AWS p4de.24xlarge", _BEFORE),
    "H100 SXM": _instance(98.32, 8, "AWS p5.48xlarge", _BEFORE),
    "B200": _instance(113.9328, 8, "AWS p6-b200.48xlarge"),
    "MI300X": _instance(48.0, 8, "Azure ND MI300X v5"),
    "T4": _instance(0.526, 1, "AWS g4dn.xlarge"),
    "L4": _instance(0.8048, 1, "AWS g6.xlarge"),
    "L40S": _instance(1.861, 1, "AWS g6e.xlarge"),
    "TPU v5p": Price(4.2, "Google Cloud TPU v5p on demand, USD 4.2 an hour for a chip", "Google on-demand price, 2025"),
}
"""Name in the catalogue -> list price in USD. Contracts for months are often less than half as expensive."""


def list_price(device: str) -> Price | None:
    """Return the list price of a device of the catalogue; None if it is unknown."""
    return LIST_PRICES.get(device)

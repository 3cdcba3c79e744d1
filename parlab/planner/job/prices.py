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
    """When it was read, or held: a day, a month or a year."""
    lost: float = 0.0
    """Share of the time that preemptions cost (0 to 1)."""


_YEAR, _BEFORE = "2025", "until June 2025"
"""When list prices held, as far as that is known: those of AWS for A100 and H100 are from before the cut of June."""


def _listed(per_hour: float, gpus: int, name: str, date: str = _YEAR, unit: str = "GPU") -> Price:
    size = f"{gpus} {unit}s" if gpus > 1 else f"one {unit}"
    dated = f"list price {date if date == _BEFORE else f'of {date}'}"
    vendor = "Google" if name.startswith("Google") else name.partition(" ")[0]
    source = f"{name} on demand, USD {per_hour:g} an hour for {size}, {dated}"
    return Price(round(per_hour / gpus, 2), source, f"{vendor} {dated}", seen=date)


LIST_PRICES: dict[str, Price] = {
    "V100 SXM2 16 GB": _listed(24.48, 8, "AWS p3.16xlarge"),
    "V100 SXM2 32 GB": _listed(31.212, 8, "AWS p3dn.24xlarge"),
    "A100 SXM4 40 GB": _listed(32.7726, 8, "AWS p4d.24xlarge", _BEFORE),
    "A100 SXM4 80 GB": _listed(40.9657, 8, "AWS p4de.24xlarge", _BEFORE),
    "H100 SXM": _listed(98.32, 8, "AWS p5.48xlarge", _BEFORE),
    "B200": _listed(113.9328, 8, "AWS p6-b200.48xlarge"),
    "MI300X": _listed(48.0, 8, "Azure ND MI300X v5"),
    "T4": _listed(0.526, 1, "AWS g4dn.xlarge"),
    "L4": _listed(0.8048, 1, "AWS g6.xlarge"),
    "L40S": _listed(1.861, 1, "AWS g6e.xlarge"),
    "TPU v5p": _listed(4.2, 1, "Google Cloud TPU v5p", unit="chip"),
}
"""Name in the catalogue -> list price in USD. Contracts for months are often less than half as expensive."""


def list_price(device: str) -> Price | None:
    """Return the list price of a device of the catalogue; None if it is unknown."""
    return LIST_PRICES.get(device)

"""Key figures in prose: `GPU util: ~85%`, `22.39 ms per sample`, `avg_step_fps = 2.59`, `about 135Gbps`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from parlab.formats.documents.prose_gpus import gpu_figures
from parlab.formats.grammar.records import Record, figure
from parlab.formats.grammar.units import NUMBER, slug, to_float, unit_of

MAX_LINE = 2_000

_N = NUMBER.pattern
_SIZE = rf"({_N})\s*([KMGT]i?B)"
_UTIL = re.compile(rf"(?i)\bGPU[ _-]*util(?:i[sz]ation)?\w*\s*[:=]?\s*~?\s*({_N})\s*~?\s*%")
_MEMORY = re.compile(
    rf"(?i)\bGPU[ _-]*mem\w*\s*[:=]?\s*~?\s*{_SIZE}(?:\s*(?:-|\u2013|to)\s*{_SIZE})?(?:\s*/\s*{_SIZE})?"
)
_PER = re.compile(rf"({_N})\s*(ms|s|us|µs)(?:ecs?|econds?)? (?:per|/) ?(sample|iteration|iter|step|token|batch)\b")
_OVER = re.compile(rf"over ({_N}) (?:iterations|iters|steps) = ({_N}) samples")
_DURATION = re.compile(r"Tuning completed in (?:(\d{1,6}) days?, )?(\d{1,4}):(\d\d):(\d\d(?:\.\d{1,9})?)")
_EXPERIMENTS = re.compile(rf"Total number of experiments: ({_N})")
_PAIR = re.compile(
    r"^[\s>*+•-]*([A-Za-z_][\w /+-]{0,60}?)\s*(?:\([^()]{0,80}\)\s*)?[:=]\s{0,4}"
    rf"[~≈]?\s{{0,4}}({_N})\s?([A-Za-zµμ%][\w/%]{{0,15}})?\s*(?:$|[;(]|[,.](?:\s|$))"
)
_WORDS = re.compile(
    r"^[\s>*+•-]*([A-Za-z_][\w /+-]{0,60}?)\s*[:=]\s*(Inf|inf|NaN|nan|OOM|N/A|n/a|[Nn]ot runnable)\s*\.?$"
)
_COUNT = re.compile(
    rf"^[\s>*+•-]*({_N})([KMBT]?)[ -](layers?|hidden dimensions?|attention heads?|heads?"
    r"|parameters?|params|GPUs|nodes)\b"
)
_WAY = re.compile(r"\b(\d{1,6})-way (stages?|shards?|pipeline|tensor|data|model)\b")
_RATE = re.compile(
    rf"(?<![\d.])({_N})\s?([KMGTP]?(?:bps|bit/s|B/s)|[GTP]F[Ll][Oo][Pp][Ss]?(?:/s)?(?:/(?:gpu|GPU|device))?)(?![\w/])"
)
_FAILED = re.compile(
    r"(?i)\b(?:fails?|failed|failure)\b.{0,80}\b(?:out of|memory|DRAM|OOM)\b|\bout of (?:d?ram|memory)\b|\bOOM\b"
)

_COUNTS = {"layer": "num_layers", "hidden dimension": "hidden_size", "attention head": "num_attention_heads",
           "head": "num_attention_heads", "parameter": "parameters", "param": "parameters", "gpu": "gpus",
           "node": "nodes"}  # fmt: skip
_OTHER_UNITS = frozenset({"samples", "samples/s", "tokens", "tokens/s", "iterations", "steps", "GPUs", "nodes",
                          "layers", "FPS", "fps"})  # fmt: skip
_DECIMAL = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def figures(line: int, text: str) -> Iterator[Record]:
    """Yield the key figures of one line of prose, each with its text."""
    text = text[:MAX_LINE]
    named = list(_named(line, text))
    yield from named
    if named:
        yield from _mentions(line, text, 0)
        return
    match = _COUNT.match(text)
    if match and (value := to_float(match[1])) is not None:
        name = _COUNTS[match[3].lower().rstrip("s")]
        yield figure(line, name, value * _DECIMAL[match[2]], text.strip(), match[2])
        yield from gpu_figures(line, text)
        return
    match = _PAIR.match(text)
    if match and _is_name(match[1], match[3]) and (value := to_float(match[2])) is not None:
        yield _pair(line, match[1], value, match[3] or "", text)
    else:
        match = _WORDS.match(text)
        if match:
            yield figure(line, slug(match[1]), None, text.strip())
    yield from _mentions(line, text, match.end() if match else 0)


def _named(line: int, text: str) -> Iterator[Record]:
    """Yield the figures that have specific patterns."""
    source_text = text.strip()
    match = _UTIL.search(text)
    if match:
        yield figure(line, "gpu_util_pct", to_float(match[1]), source_text, "%")
    match = _MEMORY.search(text)
    if match:
        yield _memory(line, match, source_text)
    match = _PER.search(text)
    if match and (value := to_float(match[1])) is not None:
        unit, what = match[2], {"iter": "iteration"}.get(match[3], match[3])
        scale = {"ms": 1.0, "s": 1e3}.get(unit, 1e-3)
        yield figure(line, f"ms_per_{what}", value * scale, source_text, unit)
    match = _OVER.search(text)
    if match:
        yield figure(line, "measured_iterations", to_float(match[1]), source_text)
        yield figure(line, "measured_samples", to_float(match[2]), source_text)
    match = _DURATION.search(text)
    if match:
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        yield figure(
            line, "tuning_duration_s", ((days * 24 + hours) * 60 + minutes) * 60 + seconds, source_text, "h:mm:ss"
        )
    match = _EXPERIMENTS.search(text)
    if match:
        yield figure(line, "tuning_experiments", to_float(match[1]), source_text)
    for match in _WAY.finditer(text):
        yield figure(line, f"{match[2].rstrip('s').lower()}_ways", to_float(match[1]), source_text)


def _memory(line: int, match: re.Match[str], source_text: str) -> Record:
    """Read `5624MiB - 6176MiB / 40537MiB`: the value is the largest size in use; the last size is the device's."""
    sizes = [_bytes(match[n], match[n + 1]) for n in (1, 3, 5)]
    low, high, total = sizes
    return figure(
        line, "gpu_mem_bytes", high if high is not None else low, source_text, match[2], low=low, high=high, total=total
    )


def _bytes(number: str | None, unit: str | None) -> float | None:
    value, base = to_float(number or ""), unit_of(unit or "")
    return None if value is None or base is None else value * base[1]


def _is_name(key: str, unit: str | None) -> bool:
    """Return whether a key is a name, in contrast to a sentence that contains an equals sign."""
    is_unit = unit is None or unit_of(unit) is not None or unit in _DECIMAL or unit in _OTHER_UNITS
    return is_unit and len(key.split()) <= 6


def _pair(line: int, key: str, value: float, unit: str, text: str) -> Record:
    base = unit_of(unit) if unit else None
    name = slug(key)
    if base is None:
        return figure(line, name, value, text.strip(), unit)
    suffix, factor = base
    full = name if name.endswith(f"_{suffix}") or suffix == "ratio" else f"{name}_{suffix}"
    return figure(line, full, value * factor, text.strip(), unit)


def _mentions(line: int, text: str, start: int) -> Iterator[Record]:
    """Yield the rates within a sentence, named by their kind, and failures."""
    for match in list(_RATE.finditer(text, start))[:20]:
        base = unit_of(match[2].replace("bit/s", "bps"))
        value = to_float(match[1])
        if base and value is not None:
            name = {"bits_per_s": "bandwidth_bits_per_s"}.get(base[0], base[0])
            yield figure(line, name, value * base[1], text.strip(), match[2])
    yield from gpu_figures(line, text)
    match_failed = _FAILED.search(text)
    if match_failed:
        yield figure(line, "failure", None, text.strip())

"""NeMo 2.0 progress lines and NeMo 1.0 progress bars.

2.0: `Training epoch 0, iteration 17/99 | lr: 2.7e-06 | global_step: 17 | train_step_timing in s: 12.64 |`.
1.0: `Epoch 0: :   0%|  | 2000/603000 [1:03:17<317:00:58, reduced_train_loss=2.600, global_step=2e+3, ...]`.

Source: nemo/lightning/pytorch/callbacks/progress_printer.py and PyTorch Lightning's tqdm bar. Iterations of 2.0 count
from 0, M in `N/M` is the last one, and N restarts with each epoch: `global_step` is the iteration. A bar rounds its
numbers to three digits, so the bar's own position replaces a rounded global_step with which it agrees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from parlab.formats.grammar.cells import cell, split_cells
from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.pairs import Pair
from parlab.formats.grammar.prefixes import STAMP, peel
from parlab.formats.grammar.quantities import known_to
from parlab.formats.grammar.records import Ending, Field, Kind, Record, unread
from parlab.formats.grammar.repeats import Repeats, by_part
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.stepcells import record_of
from parlab.formats.grammar.units import slug, to_float
from parlab.formats.grammar.wrapping import NEMO, Unwrapped

SIGNS: Signs = (
    (re.compile(r"\bTraining epoch \d+, iteration \d+/\d+ \|"), 10),
    (re.compile(r"\btrain_step_timing in s[=:]"), 6),
    (re.compile(r"\breduced_train_loss[=:]"), 4),
    (re.compile(r"\[NeMo [IWE] \d{4}-"), 4),
)

_LINE = re.compile(r"Training epoch (\d{1,9}), iteration (\d{1,15})(?:/(\d{1,15}))?\s*\|")
_START = re.compile(rf"{STAMP}Training epoch \d{{1,9}}, iteration \d")
_BARS = re.compile(r"\bEpoch \d{1,9}\s?:[\s:]{0,12}\d{1,3}%")
_BAR = re.compile(
    r"\bEpoch (?P<epoch>\d{1,9})\s?:[\s:]{0,12}(?:\d{1,3}%)?\s?\|?[^|\[\]]{0,200}\|?\s{0,4}"
    r"(?P<at>\d{1,15})/(?P<total>\d{1,15}|\?)\s\[(?P<cells>[^\]]{0,4000})"
)
# The rate of a bar: 1.52it/s, 3.20s/it.
_RATE = re.compile(r",\s{1,4}([\d.]{1,12})\s?(s/it|it/s)(?=,|\s*$)")
# The bar shows these with every step; they were measured on held-out data.
_HELD_OUT = re.compile(r"^(?:val|validation|test)_(?!step_timing)")
LARGEST_STEP = 1e15
_NO_MEASUREMENT = frozenset({"v_num"})


def _field(key: str) -> Field:
    if key in ("s/it", "it/s"):
        return Field("step_time_s" if key == "s/it" else "steps_per_s", key, key, kind="smoothed")
    if (known := known_to("nemo").get(key)) is not None:
        return known.field(key)
    base, _, seconds = key.rpartition(" in ")
    return Field(f"{slug(base)}_s", key, "s") if base and seconds == "s" else Field(slug(key), key)


_LIST = re.compile(r"\btrain_step_timing in s: ?\[([^\]]{1,200000})\]?")


def _listed(line: int, rank: int | None, text: str, *, repeats: bool) -> list[Record]:
    """Read the list of all step times at the end of a run; after the steps themselves it only repeats them."""
    records: list[Record] = []
    for part in text.split(","):
        value = to_float(part.strip())
        if value is None:
            records.append(unread(line, "not a finite number", f"train_step_timing in s: {part}"))
            continue
        field = Field("repeated_step_time_s" if repeats else "step_time_s", "train_step_timing in s", "s")
        kind: Kind = "metrics" if repeats else "step"
        records.append(Record(kind, line, {field.name: value}, rank=rank, fields=(field,), raw=(part.strip(),)))
    return records


AGAIN = "evaluation or rate printed again"


class Parser:
    """Reads lines and bars; drops held-out figures that a bar repeats."""

    def __init__(self) -> None:
        self.held_out: dict[str, str] = {}
        self.last = False
        self.stepped = False
        self.repeats = Repeats(by_part(_START, _line))

    def lines(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Read a line of one or more steps."""
        records: list[Record] = []
        for record in self.repeats.read(line, rank, time, text[:20_000]):
            if record.kind == "validation":
                if self._is_repeated(record):
                    records.append(Record("event", line, data=AGAIN))
                    continue
            elif record.kind == "step":
                self.stepped = True
                at, planned = record.values.pop("position"), record.values.pop("planned", None)
                # The number after the slash is the length of the whole training only in the first epoch.
                if planned is not None and record.iteration == at:
                    record.values["total_iterations"] = planned + 1.0
                self.last = planned is not None and record.iteration == at == planned
            records.append(record)
        return records

    def _is_repeated(self, record: Record) -> bool:
        """Return whether a line only repeats the last figures on held-out data."""
        fresh = {field.key: text for field, text in zip(record.fields, record.raw, strict=True)}
        previous, self.held_out = self.held_out, fresh
        return fresh == previous

    def _fresh(self, line: int, records: list[Record], *, is_rate_used: bool) -> list[Record]:
        """Return the records of a bar without those that it repeats, which are an event."""
        fresh = [record for record in records if record.kind != "validation" or not self._is_repeated(record)]
        return fresh if is_rate_used and len(fresh) == len(records) else [*fresh, Record("event", line, data=AGAIN)]

    def bar(self, line: int, rank: int | None, time: str | None, match: re.Match[str]) -> list[Record]:
        cells: list[Pair] = []
        step_text = ""
        for part in match["cells"].split(","):
            key, equals, text = part.partition("=")
            key, text = key.strip()[:80], text.strip()[:80]
            if equals and key and text and key not in _NO_MEASUREMENT:
                cells.append(cell(key, text))
                step_text = text if key == "global_step" else step_text
        if not any(cell.key == "global_step" or "loss" in cell.key for cell in cells):
            return []
        has_rate = not any(cell.key.startswith("train_step_timing") for cell in cells)
        if has_rate:
            rate = _RATE.search(match["cells"][:80])
            cells += [cell(rate[2], rate[1])] if rate is not None else []
        records = _records(line, rank, time, cells, _bar_iteration(match["at"], step_text), int(match["epoch"]))
        self.stepped = self.stepped or records[0].kind == "step"
        records = self._fresh(line, records, is_rate_used=has_rate)
        total = to_float(match["total"])
        if total and records and records[0].kind == "step":
            records[0].values["total_iterations"] = total
        return records


def _records(
    line: int, rank: int | None, time: str | None, cells: list[Pair], iteration: int, epoch: int
) -> list[Record]:
    held_out = [cell for cell in cells if _HELD_OUT.match(cell.key)]
    own = [cell for cell in cells if not _HELD_OUT.match(cell.key)]
    if not any(cell.value is not None for cell in own):
        return [unread(line, "an iteration without any value", " | ".join(cell.key for cell in own))]
    records = record_of("step", line, rank, iteration, _named(own), time)
    records[0].values["epoch"] = float(epoch)
    return records + record_of("validation", line, rank, iteration, _named(held_out), time)


def _named(cells: list[Pair]) -> list[tuple[Pair, Field]]:
    return [(cell, _field(cell.key)) for cell in cells]


def _line(line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
    """Return a step, with `position` and `planned`, its last step, and the figures on held-out data."""
    match = _LINE.search(text[:2000])
    if match is None:
        return []
    cells = split_cells(text[match.end() :])
    step = next((cell.value for cell in cells if cell.key == "global_step"), None)
    if step is not None and not 0 <= step < LARGEST_STEP:
        step = None
    records = _records(line, rank, time, cells, int(match[2]) if step is None else int(step), int(match[1]))
    if records[0].kind == "step":
        records[0].values |= {"position": float(match[2])} | ({"planned": float(match[3])} if match[3] else {})
    return records


def _bar_iteration(position: str, step: str) -> int:
    """Return global_step, or the bar's position if global_step is rounded (`2e+3`) and both agree."""
    at = int(position)
    value = to_float(step) if step else None
    if value is None or not 0 <= value < LARGEST_STEP:
        return at
    rounded = "e" in step.lower()
    return at if rounded and abs(at - value) <= 0.006 * value else int(value)


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a log of NeMo 1.0 or 2.0; yield steps by global step, validation and the end."""
    parser = Parser()
    ended = False
    listing: set[int | None] = set()
    unwrapped = Unwrapped(lines, NEMO)
    for line, rank, time, text in peel(unwrapped, _BARS):
        if "Training epoch" in text and (records := parser.lines(line, rank, time, text)):
            if line in unwrapped.ends:
                unwrapped.extend(records)
            yield from records
            continue
        listed = _LIST.search(text) if "timing in s" in text else None
        if listed:
            # A run ends with the list of its step times.
            if rank in listing and not parser.stepped:
                yield Record("launch", line, data={}, opens=True)
                listing.clear()
            listing.add(rank)
            yield from _listed(line, rank, listed[1], repeats=parser.stepped)
            continue
        bar = _BAR.search(text[:8000]) if "Epoch " in text else None
        if bar:
            yield from parser.bar(line, rank, time, bar)
            continue
        end = ending(text)
        if end:
            ended = True
            yield Record("end", line, data=end, rank=rank, time=time)
    if parser.last and not ended:
        yield Record("end", 0, data=Ending("finished", "the last planned iteration was printed"))

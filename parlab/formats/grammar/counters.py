"""The number of the step that a line of any trainer states: `step 3/100`, `[Epoch 1][ 10/5005]`, `400 updates |`."""

from __future__ import annotations

import re
from typing import NamedTuple

from parlab.formats.grammar.prefixes import STAMP, spliced

_NUMBER_OF = r"\s{0,4}[:=#]?\s{0,12}['\"]?(?P<at>\d{1,15})(?:\s?/\s{0,8}(?P<total>\d{1,15}))?"
# Counters that begin again in every epoch.
_IN_EPOCH = (
    re.compile(
        r"(?i)\b(?:epoch|train(?:ing)?)(?:\(train\)|\s?epoch)?:?\s{0,3}\[?\s{0,4}(?P<epoch>\d{1,9})\]?\s{0,3}"
        r"\[\s{0,9}(?P<at>\d{1,15})\s?/\s{0,8}(?P<total>\d{1,15})(?=[\s\](])"
    ),
    re.compile(
        r"(?i)\bepoch:?\s?\[(?P<epoch>\d{1,9})/(?P<epochs>\d{1,9})\]\s?[,|:-]?\s{0,3}(?:step|batch|iter(?:ation)?):?"
        r"\s?\[\s{0,9}(?P<at>\d{1,15})/(?P<total>\d{1,15})\]"
    ),
    re.compile(
        r"(?i)\bepoch:?\s?(?P<epoch>\d{1,9})\s?/\s?(?P<epochs>\d{1,9})[,|:;]?\s{1,3}(?:step|batch|iter(?:ation)?):?"
        r"\s{0,3}(?P<at>\d{1,15})\s?/\s?(?P<total>\d{1,15})(?![\d.])"
    ),
    re.compile(r"\bEpoch: (?P<epoch>\d{1,9}), Batch: (?P<at>\d{1,15})/(?P<total>\d{1,15})(?=,)"),  # GluonNLP
    re.compile(r"\btrain epoch (?P<epoch>\d{1,9}), iter (?P<at>\d{1,15})/(?P<total>\d{1,15})(?=,)"),  # neuralgym
    re.compile(
        r"(?i)(?:training |\b)epoch (?P<epoch>\d{1,9}), iteration (?P<at>\d{1,15})(?:/(?P<total>\d{1,15}))?(?=\s?[|:,])"
    ),
    re.compile(r"(?i)\bit(?:er)? (?P<at>\d{1,15})/(?P<total>\d{1,15}) of epoch (?P<epoch>\d{1,9})\b"),
    re.compile(
        r"(?i)\bepoch:? ?(?P<epoch>\d{1,9}),? (?:step: ?|batch(?:_idx)? )(?P<at>\d{1,15})(?P<total>(?!))?(?=[^\d/])"
    ),
    re.compile(
        r"(?i)\bepoch\s{1,4}(?P<epoch>\d{1,9}) \|\s{1,6}(?P<at>\d{1,15})/\s{0,6}(?P<total>\d{1,15})"
        r" (?:batches|steps)(?= \|)"
    ),
    re.compile(r"^\s{0,12}iters: (?P<at>\d{1,15})(?P<total>(?!))?, epoch: (?P<epoch>\d{1,9})(?=\s)"),  # Informer
    re.compile(
        r"(?i)(?:^|[\s:|,])\[?epoch\s?[\[ ](?P<epoch>\d{1,9})\]\s?\[?batch\s?[\[ ](?P<at>\d{1,15})\](?P<total>(?!))?"
        r"(?=[\s,])"
    ),  # MXNet, GluonCV, Sockeye
    # `[0/25][50/1583]`: epoch and batch, each with its total.
    re.compile(
        r"(?:^|[\s:])(?:Epoch:? )?\[\s{0,3}(?P<epoch>\d{1,9})/(?P<epochs>\d{1,9})\]\s?"
        r"\[\s{0,9}(?P<at>\d{1,15})/\s{0,9}(?P<total>\d{1,15})\](?=[\s:,])"
    ),
    re.compile(r"\bTRAIN Batch (?P<epoch>\d{1,9})/(?P<at>\d{1,15})(?P<total>(?!))?(?= loss )"),  # WeNet
    re.compile(
        r"(?P<epoch>(?!))?^\s{0,4}(?P<at>\d{1,15})/(?P<total>\d{1,15}) [\[━].{0,120}? (?=- |\d{1,9}m?s |\d{1,3}% - )"
    ),
)
_COUNTERS = (
    re.compile(
        r"(?i)(?:^|[\s|,\[({'\"/-])(?:global[_ ]?step|current_steps?|n(?:um_)?updates"
        r"|(?:training_|acc_)?iter(?:ation)?|step(?:_i)?|perf|rollout)"
        rf"['\"]?{_NUMBER_OF}(?![\d.]|\s?(?:ms|s|sec|us|%|it)\b|\w)"
    ),
    re.compile(r"(?:^|[\s|,\]])Steps=(?P<at>\d{1,15})(?P<total>(?!))?(?=,)"),  # DeBERTa
    re.compile(
        r"(?i)(?:^|[\s|,(])(?:iter(?:ation)?|step)(?:\(train\))?:?\s?\[\s{0,9}(?P<at>\d{1,15})\s?/\s{0,8}(?P<total>\d{1,15})\]"
    ),
    re.compile(r"\.py:\d{1,6}\] \[(?P<at>\d{1,15})\](?P<total>(?!))? (?=[\w/]{1,80}=)"),  # clu
    re.compile(r"(?:^|\] )(?P<at>\d{1,15})(?P<total>(?!))? : (?=iter_speed )"),  # imaginaire
    re.compile(rf"(?i)(?:^|[\s|,\[(])(?:batch|update|Up\.){_NUMBER_OF}(?![\d.\w])"),
    re.compile(r"(?i)(?:^|[\s|,\])])batch \[(?P<at>\d{1,15})\](?P<total>(?!))?(?=\s)"),  # Sockeye, GluonNLP
    re.compile(r"^tick\s{1,4}(?P<at>\d{1,9})(?P<total>(?!))?\s{1,9}(?=kimg )"),  # StyleGAN
    re.compile(
        r"(?i)(?:^|[\s|,\[(])it(?:[:=]\s?(?P<at>\d{1,15})(?P<total>(?!))?|\s(?P<place>\d{1,15})/\d{1,15})(?=[\s,;|\])])"
    ),
    re.compile(
        r"\bProgress on:\s?train\s(?P<at>\d{1,15})(?:\.\d{1,3})?it/(?:(?P<total>\d{1,15})(?:\.\d)?|[\d.]{1,9}[kM])it\b"
    ),  # Levanter
    re.compile(r"(?i)\bepoch\s\d{1,6}:?\s{1,12}(?P<at>\d{1,15})\s?/\s?(?P<total>\d{1,15})(?=\s)"),
    re.compile(r"\[\s{0,9}(?P<at>\d{1,15})\s?/\s{0,8}(?P<total>\d{1,15})\]\s{1,4}eta: "),  # torchvision's logger
    re.compile(r"(?:^|\])\[#(?P<at>\d{1,15})\](?P<total>(?!))?(?=\[)"),  # DeepFaceLab
    # `[1100/8782]` in front of two cells.
    re.compile(
        r"(?:^|\s-\s|INFO:?\s)\s?\[\s{0,9}(?P<at>\d{1,15})\s?/\s{0,8}(?P<total>\d{1,15})\]\s"
        r"(?=.{0,80}?\w\s?[:=]\s?[\d.]+,? .{0,80}?\w\s?[:=]\s?[\d.]+)"
    ),
    # A number alone in front of cells, or of values with their names behind them.
    re.compile(r"^\s{0,8}(?P<at>\d{1,15})(?P<total>(?!))?\s?\|(?=\s?[A-Za-z][\w/ ]{0,40}[:= ]\s?[+-]?\d)"),
    re.compile(
        r"^\s{0,8}(?P<at>\d{1,15})(?P<total>(?!))?[,:]?\s{1,4}"
        r"(?=\d{1,12}(?:\.\d{1,12})?\s?(?:[mnu]?s|[KMGT]i?B)\s[a-z]{2,20}, \s{0,8}[\d.]{1,20}\s?[A-Za-z])"
    ),
    # Hydra's logger: `[2024-11-12 15:43:03,864][agent.train][INFO] - 9: train loss 0.16`.
    re.compile(r"(?:^|\]) ?- (?P<at>\d{1,15})(?P<total>(?!))?:(?= (?:train )?loss\s)"),
    re.compile(r"(?:^|[\s|\]])(?P<at>\d{1,15})(?P<total>(?!))? (?:updates|steps|iterations|iters)(?=\s?[|:,])"),
    # A number alone in front of a rate, or of values with their names behind them.
    re.compile(r"\s-\s{1,12}(?P<at>\d{1,15})(?P<total>(?!))?(?=\s-\s{1,12}\d[\d.,]{0,15} [a-zA-Z]{2,10}/s\b)"),
    re.compile(
        r"^\s{0,8}(?P<at>\d{1,15})(?P<total>(?!))?:(?=(?: \d[\d.]{0,18},)? \d[\d.]{0,18} [A-Za-z][A-Za-z ]{1,30},"
        r" \d[\d.]{0,18} [A-Za-z])"
    ),
)


class Counter(NamedTuple):
    """The number of a step, and of its epoch if it counts the steps of one."""

    match: re.Match[str]
    at: int
    total: int | None
    epoch: int | None
    in_epoch: bool
    epochs: int | None = None


def counter_in(text: str) -> Counter | None:
    """Return the number of the step that a line states."""
    for patterns in (_IN_EPOCH, _COUNTERS):
        for pattern in patterns:
            match = pattern.search(text)
            if match is None:
                continue
            return counter_of_match(match, in_epoch=patterns is _IN_EPOCH)
    return None


def counter_of_match(match: re.Match[str], *, in_epoch: bool) -> Counter:
    """Return the counter of a match with the groups `at`, and perhaps `total` and `epoch`."""
    groups = match.groupdict()
    total, epoch, epochs = (int(text) if (text := groups.get(name)) else None for name in ("total", "epoch", "epochs"))
    return Counter(match, int(groups["at"] or groups.get("place") or 0), total, epoch, in_epoch, epochs)


def parts_of(text: str) -> list[str]:
    """Split a text before the next mention of its counter: steps of several ranks without a line feed between them."""
    stated = counter_in(text)
    counter = stated.match if stated is not None else None
    if counter is None or counter["at"] is None:
        return [text]
    head = counter[0][: counter.start("at") - counter.start()]
    words = head.strip(" |,[({-")
    again = re.compile(rf"(?<![A-Za-z_/]){STAMP}{re.escape(words)}\s{{0,12}}(?=\d)")
    return spliced(again, text) if len(text) > 2 * len(counter[0]) and words else [text]


def counter_of(text: str) -> int | None:
    """Return the number after `step`, `iter` or a similar word; None if the line has none."""
    counter = counter_in(text[:8_000])
    return None if counter is None else counter.at


_KEPT_EPOCHS = 8


class Clock:
    """Converts epoch and batch to one increasing iteration number."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        self.largest = -1

    def iteration(self, epoch: int, batch: int, total: int | None = None, *, has_epochs: bool = False) -> int:
        """Return the iteration of a batch; `total` is the number of batches of an epoch, if it is known.

        `has_epochs`: epochs are counted with their number, `2/90`, from 1 as far as none is 0.
        """
        offset = self.offsets.get(epoch)
        if offset is None:
            # An epoch before all recorded ones belongs to another launch, which counts from its own start.
            if self.offsets and epoch < min(self.offsets):
                self.offsets.clear()
                self.largest = -1
            offset = self.offsets[epoch] = self._offset(epoch, batch, total, has_epochs=has_epochs)
            if len(self.offsets) > _KEPT_EPOCHS:
                del self.offsets[next(iter(self.offsets))]
        iteration = offset + batch
        self.largest = max(self.largest, iteration)
        return iteration

    def _offset(self, epoch: int, batch: int, total: int | None, *, has_epochs: bool) -> int:
        """Return the number of batches before an epoch."""
        if not self.offsets:
            return (epoch - 1) * total if has_epochs and total and epoch > 1 else 0
        if batch > self.largest:
            return 0  # a counter that goes on in the next epoch counts all batches
        last = max(self.offsets)
        before = self.offsets[last] + (epoch - last) * total if total else 0
        return before if before + batch > self.largest else self.largest + 1

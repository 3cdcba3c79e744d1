"""Lines that hold numbers and are no measurements, by their kind: a setting, a checkpoint, an overflow, other work."""

from __future__ import annotations

import re

from parlab.formats.grammar.literals import Candidates
from parlab.formats.grammar.prefixes import ANSI, strip_prefix

# A number beside one of these words may be a measurement.
_WORD = re.compile(
    r"(?i)(?:\btim(?:e|ing)s?(?![a-z])|_tim(?:e|ing)|elapsed|latency|duration|\d ?m?s(?:ec(?:onds?)?)?\b"
    r"|\bseconds?\b|throughput|tokens?[/_]|tok/s|samples?/s"
    r"|\bit/s|s/it\b|flop|\bmfu\b|\bmem(?:ory)?(?![a-z])|_mem|\d ?[KMGT]i?B\b|\bsteps?\b"
    r"|\biter(?:ation)?s?\b|bandwidth|\b(?:wps|ups|tgs|tps)\b|\d ?(?:/s|[a-z]{2,9}/s(?:ec)?)\b"
    r"|(?:/s|/sec|per.sec\w*)\b)"
)
_DIGIT = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?![\w-])|\d\.\d|\d ?(?:ms|s|[KMGT]i?B)\b")
# Pattern of a line -> kind of event.
EVENTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^\{\"parlab\":"), "event of parlab"),
    (re.compile(r"^\s*\(\w[\w ,]{0,40}\) time across ranks|time across ranks \(ms\)"), "block of timers"),
    (re.compile(r"^\s+[\w/-][\w/ -]{0,78}? \.*: \([\d.]+, [\d.]+\)"), "block of timers"),
    (re.compile(r"^\s*[A-Za-z_]\w{0,120} ?\.{2,}"), "setting"),
    (re.compile(r"^\s*--?[a-z][\w-]*|\s--[a-z][\w-]+[ =]"), "command"),
    (re.compile(r"^\s*[\"']?[\w.-]{1,80}[\"']?\s?[:=]\s?(?:[\[{\"']|None|True|False|null|true|false)"), "setting"),
    (re.compile(r"^\s*[\"'][\w.-]{1,80}[\"']: ?[\d.e+-]+,?\s*$"), "setting"),
    (re.compile(r"^\s*(?:[+\\]{1,8}\s?)?(?:export )?[A-Z][A-Z0-9_]{2,60}="), "environment"),
    (
        re.compile(r"(?i)\bwarn(?:ing)?\b|warning: |deprecat|\berror\b|exception|traceback|^\s*File \""),
        "warning",
    ),
    (re.compile(r"^\s*(?:at |from |raise |return |import |def |assert |if |for |with |self\.)"), "traceback"),
    (
        re.compile(
            r"(?i)\b(?:sav|load|writ|read|restor|download|upload)(?:e|es|ed|ing)\b.{0,200}"
            r"(?:model|optimizer|dataset|state|weights|token|index|file)"
        ),
        "reading or writing",
    ),
    (re.compile(r"(?i)\bcheckpoint(?:s|ing)?\b"), "checkpoint"),
    (re.compile(r"Invalidate trace cache @ step \d"), "trace cache"),
    (re.compile(r"(?i:reducing (?:loss )?scale|gradient overflow|\boverflow!)"), "overflow"),
    (re.compile(r"(?i)^\W*(?:beginning|start) of (?:an? )?epoch|^\W*\*{3,} ?(?:running|evaluating|starting)"
                r"|\bepoch is incremented"), "epoch"),
    (re.compile(r"(?i)^\W*warm-?up[_ ]?(?:step|iter(?:ation)?)s?\W{0,3}\d{1,9}\s?/\s?\d{1,9}\W*$"), "warm-up"),
    (
        re.compile(r"(?i)\bbuil[dt](?:ing)?\b|\bcompil(?:e|ed|ing|ation)\b|\binitializ(?:e|ed|ing|ation)\b|\bset(?:ting|up)\b"),
        "start",
    ),
    (
        re.compile(r"\bdatetime: |(?i:finished creating)|\bTraining: ?(?:0it|\|)|\bStarting training"),
        "start",
    ),
    (
        re.compile(r"(?i)\bTheoretical memory|Total TFLOPs: |^\W*split as [\d.]+% learnable"),
        "formula",
    ),
    (re.compile(r"^allocating \d+ [KMG]iB for "), "buffer"),
    (re.compile(r"(?i)\[Training Stage: "), "phase"),
    (
        re.compile(
            r"(?i)^\W*total (?:training )?steps: [\d,]+, num_warmup|^\W*total batch size [\d,]+ => "
            r"|estimated FLOPs per token|calculated number of iterations"
        ),
        "plan",
    ),
    (re.compile(r"^\s*(?:Time elapsed|ETA): [\d:]{5,12}\s*$"), "clock"),
    (re.compile(r"\bNCCL (?:INFO|WARN)\b"), "NCCL"),
    (re.compile(r"^\s*[|+][-=+|\s]*$|^\s*\|.*\|\s*$"), "drawn table"),
    (re.compile(r"(?i)^\s*(?:slurm|srun|sbatch|squeue|torchrun|mpirun|pdsh|scontrol)\b|^killing sub"), "launcher"),
    (re.compile(r"(?i)\bnumber of parameters\b"), "model size"),
)  # fmt: skip

_PATTERNS = Candidates([pattern for pattern, _ in EVENTS])


def event_of(text: str) -> str:
    """Return the kind of event that a line is; empty for none."""
    return next((EVENTS[place][1] for place in _PATTERNS.of(text) if EVENTS[place][0].search(text)), "")


def is_measurement(text: str) -> bool:
    """Return whether a line holds a number and a word of time, throughput, memory or steps, and is no known event."""
    rest = of_interest(text)
    return bool(rest) and not event_of(rest)


def of_interest(text: str) -> str:
    """Return a line without its tags if it holds a number and a word of measurements; empty for any other line."""
    text = text[:1_000]
    if "\x1b" in text:
        text = ANSI.sub("", text)
    if _WORD.search(text) is None:
        return ""
    rest = strip_prefix(text)[2]
    if _DIGIT.search(rest) is None or (rest != text and _WORD.search(rest) is None):
        return ""
    return rest

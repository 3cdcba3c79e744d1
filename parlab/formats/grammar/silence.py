"""Lines that look like a measurement and that a reader passes over in silence become `unread`.

A line that holds a number and a word of time, throughput, memory or steps is in a record, belongs to a kind of line
listed in NOISE, or is reported. The check runs beside every reader of logs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from parlab.formats.grammar.literals import Candidates
from parlab.formats.grammar.prefixes import ANSI, strip_prefix
from parlab.formats.grammar.processes import STATED, stated_processes
from parlab.formats.grammar.records import Record, unread

# A number beside one of these words may be a measurement.
_WORD = re.compile(
    r"(?i)(?:\btim(?:e|ing)s?(?![a-z])|_tim(?:e|ing)|elapsed|latency|duration|\d ?m?s(?:ec(?:onds?)?)?\b"
    r"|\bseconds?\b|throughput|tokens?[/_]|tok/s|samples?/s"
    r"|\bit/s|s/it\b|flop|\bmfu\b|\bmem(?:ory)?(?![a-z])|_mem|\d ?[KMGT]i?B\b|\bsteps?\b"
    r"|\biter(?:ation)?s?\b|bandwidth|\b(?:wps|ups|tgs|tps)\b|\d ?(?:/s|[a-z]{2,9}/s(?:ec)?)\b"
    r"|(?:/s|/sec|per.sec\w*)\b)"
)
_DIGIT = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?![\w-])|\d\.\d|\d ?(?:ms|s|[KMGT]i?B)\b")

# Kind of line -> why it is no measurement of the training.
NOISE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^\{\"parlab\":"), "event of an engine of parlab, stored as series"),
    (re.compile(r"^\s*\(\w[\w ,]{0,40}\) time across ranks|time across ranks \(ms\)"), "heading of a block of timers"),
    (re.compile(r"^\s+[\w/-][\w/ -]{0,78}? \.*: \([\d.]+, [\d.]+\)"), "line of a block of timers, part of its record"),
    (re.compile(r"^\s*[A-Za-z_]\w{0,120} ?\.{2,}"), "line of an argument dump, part of the launch"),
    (re.compile(r"^\s*--?[a-z][\w-]*|\s--[a-z][\w-]+[ =]"), "command line, part of the launch"),
    (re.compile(r"^\s*[\"']?[\w.-]{1,80}[\"']?\s?[:=]\s?(?:[\[{\"']|None|True|False|null|true|false)"), "setting"),
    (re.compile(r"^\s*[\"'][\w.-]{1,80}[\"']: ?[\d.e+-]+,?\s*$"), "line of a JSON or Python configuration"),
    (re.compile(r"^\s*(?:export )?[A-Z][A-Z0-9_]{2,60}="), "environment variable"),
    (
        re.compile(r"(?i)\bwarn(?:ing)?\b|warning: |deprecat|\berror\b|exception|traceback|^\s*File \""),
        "warning or error",
    ),
    (re.compile(r"^\s*(?:at |from |raise |return |import |def |assert |if |for |with |self\.)"), "line of a traceback"),
    (
        re.compile(
            r"(?i)\b(?:sav|load|writ|read|restor|download|upload)(?:e|es|ed|ing)\b.{0,200}"
            r"(?:model|optimizer|dataset|state|weights|token|index|file)"
        ),
        "model or data set that is read or written",
    ),
    (re.compile(r"(?i)\bcheckpoint(?:s|ing)?\b"), "checkpoint"),
    (re.compile(r"Invalidate trace cache @ step \d|(?i:reducing (?:loss )?scale|gradient overflow)"), "event"),
    (re.compile(r"(?i)^\W*(?:beginning|start) of (?:an? )?epoch|^\W*\*{3,} ?(?:running|evaluating|starting)"), "event"),
    (
        re.compile(r"(?i)\bbuil[dt](?:ing)?\b|\bcompil(?:e|ed|ing|ation)\b|\binitializ(?:e|ed|ing|ation)\b|\bset(?:ting|up)\b"),
        "start of the program",
    ),
    (
        re.compile(r"\bdatetime: |(?i:finished creating)|\bTraining: ?(?:0it|\|)|\bStarting training"),
        "message about the start of a phase",
    ),
    (
        re.compile(r"(?i)\bTheoretical memory|Total TFLOPs: |^\W*split as [\d.]+% learnable"),
        "figure of a formula, not measured",
    ),
    (re.compile(r"^allocating \d+ [KMG]iB for "), "size of one buffer, part of the memory in use"),
    (re.compile(r"(?i)\[Training Stage: "), "name of a phase"),
    (
        re.compile(
            r"(?i)^\W*total (?:training )?steps: [\d,]+, num_warmup|^\W*total batch size [\d,]+ => "
            r"|estimated FLOPs per token|calculated number of iterations"
        ),
        "plan of the training, not measured",
    ),
    (re.compile(r"^\s*(?:Time elapsed|ETA): [\d:]{5,12}\s*$"), "clock of the whole run"),
    (re.compile(r"\bNCCL (?:INFO|WARN)\b"), "message of NCCL"),
    (re.compile(r"\d%\|[^|]{0,300}\|"), "bar of other work than training"),
    (re.compile(r"^\s*(?:\||\+)[-=+|\s]*|^\s*\|.*\|\s*$"), "row of a table that the program draws"),
    (re.compile(r"(?i)^\s*(?:slurm|srun|sbatch|squeue|torchrun|mpirun|pdsh|scontrol)\b"), "message of a launcher"),
)  # fmt: skip

_NOISE = Candidates([pattern for pattern, _ in NOISE])

# Format -> lines that its reader keeps until a later record, or that state what the reader derives from others.
PARTS: dict[str, re.Pattern[str]] = {
    "mlperf": re.compile(r":::MLL"),
    "deepspeed": re.compile(
        r"\bepoch: ?\d+\|step: ?\d+|^\W*(?:End-to-End|Generation|Training|\|E2E) {0,8}(?:=>|latency)"
        r"|\[config\.py:\d+:print|see_memory_usage|(?:Free|Total|Requested) memory ?:|Flops ?Profiler|stage3\.py"
        r"|^Profile Summary at step|^fwd (?:flops|MACs) |^(?:params|weights) (?:per GPU|of model)"
        r"|^Comm\. Op\s|^\s*[\d.]+ (?:B|[KMGT]B)\s+\d+(?:\s+-?[\d.]+){4}\s*$"
    ),
    "all-reduce-bench": re.compile(r"^\W*(?:\d+ data size|duration|algo throughput|busbw|Waiting|\d+:)\b"),
    "huggingface": re.compile(
        r"= \d+\s*$|\[config\.py:\d+:print|see_memory_usage|Flops Profiler|stage3\.py|Swappable|^\s+[\w ]{1,40} = "
        r"|Num GPUs = \d+\. Max memory: "
        r"|^[\d.]+ (?:(?:seconds|minutes) used for training|GB of memory reserved)|% of max memory = "
    ),
    "nccl-tests": re.compile(r"^\s*(?:#|nThread \d|\d{1,20}\s+\d{1,20}\s+[a-z]\w*\s)"),
    "link-tests": re.compile(r"^\s*#|^\s*\d+\s|^ \w[\w ./]{1,30}\t? *: "),
    "torchtitan": re.compile(
        r"Training starts at step|Peak FLOPS used|(?:CUDA|GPU) capacity|Building .{0,20}device mesh"
    ),
    "megatron": re.compile(r"\bStep Time ?:|^\s*samples/sec: "),
    "maxtext": re.compile(r"Memstats: After "),
    "serving": re.compile(r"^\s*[┃│]"),
    "nanogpt": re.compile(r"^tokens per iteration will be"),
}
PARTS["megatron-deepspeed"] = re.compile(f"{PARTS['deepspeed'].pattern}|{PARTS['megatron'].pattern}")


# A bar that a person has pasted: bold, quoted, or escaped for HTML.
def _is_marked(text: str) -> bool:
    return "**" in text or "&lt;" in text or "&#124;" in text or text.lstrip(" ").startswith(">")


def unmarked(text: str) -> str:
    """Return a bar without the marks of Markdown and HTML around it."""
    text = text.replace("**", "").replace("&lt;", "<").replace("&#124;", "|").replace("&gt;", ">")
    return _QUOTED.sub("", text)


_QUOTED = re.compile(r"^\s{0,3}(?:>\s?){1,4}")
_AHEAD = 256
# Lines that may state the number of processes even if the reader reads them; later ones only if it does not.
_HEAD = 200


def is_measurement(text: str) -> bool:
    """Return whether a line holds a number and a word of time, throughput, memory or steps, and is no known noise."""
    text = text[:1_000]
    if "\x1b" in text:
        text = ANSI.sub("", text)
    if _WORD.search(text) is None:
        return False
    rest = strip_prefix(text)[2]
    if _DIGIT.search(rest) is None or (rest != text and _WORD.search(rest) is None):
        return False
    return not any(NOISE[place][0].search(rest) for place in _NOISE.of(rest))


class _Watch:
    """Passes lines on and keeps those that yield no record."""

    def __init__(self, lines: Iterable[str], parts: re.Pattern[str] | None) -> None:
        self.lines = lines
        self.parts = parts
        self.last_record = 0
        self.passed: dict[int, str] = {}
        self.heard: list[Record] = []
        """The numbers of processes that lines state."""

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(self.lines, 1):
            text = unmarked(line) if "%|" in line and _is_marked(line) else line
            if number <= _HEAD:
                self._hear(number, text)
            yield text
            if self.last_record != number:
                self.passed[number] = text
                # Without a call more for lines that state nothing, which are most lines of blocks.
                if number > _HEAD and "%|" not in text and stated_processes(text) is not None:
                    self._hear(number, text)

    def _hear(self, number: int, text: str) -> None:
        if (processes := stated_processes(text)) is not None:
            self.heard.append(Record("launch", number, data={STATED: processes}))

    def told(self) -> list[Record]:
        """Return what lines have stated since the last call."""
        heard, self.heard = self.heard, []
        return heard

    def due(self, count: int) -> Iterator[Record]:
        """Yield the `count` oldest lines without a record that are measurements."""
        for number in list(self.passed)[:count]:
            text = self.passed.pop(number)
            # The cheaper question first: most of these lines are parts of tables or blocks.
            if not (self.parts is not None and self._is_part(self.parts, text[:1_000])) and is_measurement(text):
                yield unread(number, SILENT, text)

    @staticmethod
    def _is_part(parts: re.Pattern[str], text: str) -> bool:
        """Return whether a line, or what stands behind its tags, is of a kind that the reader uses otherwise."""
        return parts.search(text) is not None or parts.search(strip_prefix(ANSI.sub("", text))[2]) is not None


SILENT = "looks like a measurement, but this format does not define it"


def watched(read: Callable[[Iterable[str]], Iterator[Record]], lines: Iterable[str], format: str) -> Iterator[Record]:
    """Yield the records of a reader, and an unread record for each measurement that it passed over."""
    watch = _Watch(lines, PARTS.get(format))
    passed = watch.passed
    for record in read(watch):
        if watch.heard:
            yield from watch.told()
        watch.last_record = record.until
        if passed:
            if record.line == record.until:
                passed.pop(record.line, None)
            else:
                for number in range(record.line, record.until + 1):
                    passed.pop(number, None)
            if len(passed) > 2 * _AHEAD:
                yield from watch.due(_AHEAD)
        yield record
    yield from watch.told()
    yield from watch.due(len(passed))

"""Cells of a line of any trainer: `key: value unit`, `key=value`, `key value` between bars, `36.58 ms`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from parlab.formats.grammar.quantities import known_name
from parlab.formats.grammar.rates import PATTERN
from parlab.formats.grammar.units import UNITS, duration_seconds, to_float

MAX_TEXT = 8_000
MAX_PAIRS = 200
AVERAGE = " average"
"""The end of the key of an average that is printed beside its value."""


class Pair(NamedTuple):
    """One cell as printed; the value is None if it is not a finite number."""

    key: str
    text: str
    unit: str
    value: float | None


_NUMBER = r"[+-]?(?:\d{1,3}(?:,\d{3}){1,6}(?![\d,])|\d{1,40}|(?=\.\d))(?:\.\d{0,40})?(?:[eE][+-]?\d{1,4})?"
_WORDS = "|".join([PATTERN, *sorted((re.escape(unit) for unit in UNITS if unit != "%"), key=len, reverse=True)])
_UNIT = rf"\s?(?:(?i:{_WORDS})(?![\w/])|%)|[A-Za-zµ][A-Za-z/]{{0,15}}(?![\w])"
_KEY = r"[A-Za-z_][\w./@-]{0,80}(?: [A-Za-z][\w./@-]{0,30}){0,4}(?:\s?\([^()|:=]{1,40}\))?"
# A unit in brackets behind its number: `350 (ms)`.
_BRACKETED = "|".join(sorted((re.escape(unit) for unit in UNITS if unit not in ("%", "x")), key=len, reverse=True))
# A number of which another one follows, `41.2/80.0GB`, is the part of a whole; a factor is no value.
_OF = rf"(?:\s?/\s?{_NUMBER}(?=\s?[KMGT]i?B\b))?"
# A sentence may begin behind a number of four decimals; behind a shorter one, it is often a heading of others.
_PAIR = re.compile(
    rf"(?<![\w./=])['\"]?(?P<key>{_KEY})['\"]?\s{{0,24}}[:=]\s{{0,20}}['\"]?(?P<value>{_NUMBER}|(?i:nan|[+-]?inf)\b){_OF}"
    r"(?P<unit>" + _UNIT + r"|\s?\((?:" + _BRACKETED + r")\))?(?=[\s,;|)\]}('\"]|\.?$|(?<=\.\d\d\d\d)\.\s)(?!\s?\*\s)"
)
_SPACED = re.compile(
    rf"^\s*(?P<key>[A-Za-z][\w/@-]{{0,40}}(?: [A-Za-z][\w/-]{{0,30}}){{0,5}})\s{{1,20}}"
    rf"(?P<value>{_NUMBER}|(?i:nan|[+-]?inf)\b){_OF}"
    rf"(?P<unit>{_UNIT})?\s*(?:\([^()]{{0,40}})?\)?\s*$"
)
_BARE = re.compile(
    rf"^\s*\(?\s*(?P<value>{_NUMBER})\s?(?P<unit>(?i:{_WORDS})(?![\w/])|%)(?:\s+(?P<key>[\w ]{{1,40}}?))?\s*\)?\s*$"
)
# A value in front of its name, `11.875 loss`, `1.2 grad norm`, in a line of such values.
_NAMED_BEHIND = re.compile(
    rf"^\s*(?P<value>{_NUMBER})\s(?P<unit>(?!))?"
    r"(?P<key>[A-Za-z][A-Za-z_]{0,30}(?: [A-Za-z][A-Za-z_]{0,30}){0,2})\s*$"
)
# What stands in front of such values: `[trainer]`, `worker 3 done:`, `epoch 1 batch 30 ->`.
_AHEAD = re.compile(rf"^(?P<words>[^,|=]{{0,80}}?)(?:[\]:]|->|=>)\s{{1,8}}(?={_NUMBER}[\s%])")
_PARTS = re.compile(r", | \| | - |; |\|\s*$")
MIN_BEHIND, MIN_MARKS, MIN_AVERAGES = 3, 2, 2
# A rate names its quantity wherever it stands.
_RATED = re.compile(rf"(?<![\w.:=/-])(?P<value>{_NUMBER})\s?(?P<unit>(?i:{PATTERN}))(?![\w/])")
_FRAMES = str.maketrans("│┃║", "|||")
_TIME = frozenset({"ns", "us", "ms", "s", "sec", "secs", "seconds"})


def pairs(text: str) -> list[Pair]:
    """Return the cells of a line, in its order; parts between bars may also be `lr 3e-4` or `36.58 ms`."""
    return pairs_and_rest(text)[0]


# A rate ends its cell: `6.25 updates/sec perplexity=1459`.
_RATE_ENDS = re.compile(rf"(?<=\d)(\s?(?i:{PATTERN}))\s{{1,4}}(?=[A-Za-z_][\w./-]{{0,60}}\s?[:=])")
# The time left, among cells without signs.
_LEFT = re.compile(r"(?i)\b(?:eta|remain(?:ing)?) \d[\d:]{3,11}(?=\s)")
# `1h 19m 08s` and `1 day, 2:03:04` are one value each.
_CLOCK = re.compile(r"(?<![\w.])(?:(?:\d{1,5}[dhm] ){1,3}\d{1,2}s|-?\d{1,4} days?, \d{1,2}:\d\d:\d\d)(?![\w/])")


def pairs_and_rest(text: str) -> tuple[list[Pair], str]:
    """Return the cells of a line, in its order, and the text without them."""
    text = _with_signs(text[:MAX_TEXT].translate(_FRAMES))
    if "/s" in text:
        text = _RATE_ENDS.sub(r"\1, ", text)
    if "eta " in text or "emain" in text:
        text = _LEFT.sub(" ", text)
    text = _CLOCK.sub(lambda match: f"{duration_seconds(match[0]) or 0:.0f}s", text)
    cells: list[Pair] = []
    rest: list[str] = []
    has_bars = "|" in text
    parts = text.split("|") if has_bars else _sentences(text)
    if "=" not in text and (len(parts) > 1 or " - " in text or "; " in text) and (behind := named_behind(text))[0]:
        return behind
    for part in parts:
        matches = [match for match in _PAIR.finditer(part) if ".py" not in match["key"]]
        blank = _blanked(part, matches)
        rated = _rates(blank) if matches else []
        cells += [_pair(match["key"], match) for match in matches]
        cells += [_pair(match["unit"], match) for match in rated]
        if not matches:
            own, blank = _without_signs(part, is_cell=has_bars)
            cells += own
        rest.append(_blanked(blank, rated))
        if len(cells) >= MAX_PAIRS:
            break
    return cells, " | ".join(rest)


# `loss: 1.3347 (1.4339)`: a value and its average, of at least two quantities, or `loss=1.27 (1.5)`.
_AVERAGED = re.compile(
    rf"(?<![\w./=])(?P<key>[A-Za-z][\w/@-]{{0,40}}(?: [A-Za-z][\w/@-]{{0,20}}){{0,2}}(?: \([a-z]\))?)"
    rf"(?P<sign>=|:?(?=\s))(?P<value>\s{{0,8}}{_NUMBER})\s?\(\s{{0,8}}(?P<average>{_NUMBER})\)(?=[\s,;|]|$)"
)
# The time of so many steps: `Time(1000 iters): 5.38s`.
_OF_STEPS = re.compile(r"(?i)\btime\s?\(\d{1,7} (?:iters?|iterations|steps|batches)\)(?=\s?[:=])")
_IS = re.compile(r"(?<=[A-Za-z]) is (?=[+-]?\d)")
_SENTENCE_END = re.compile(r"(?<=[\da-z])\.\s{1,4}(?=[A-Z]|$)")
# Of a count and its total, `sample=72/5608`, the count is the value.
_OF_TOTAL = re.compile(r"(?<=[=:])(\s?\d{1,15})/\d{1,15}(?=[\s,;|)\]}]|$)")
# A time of the clock as the value of one of these names.
_DURATION = re.compile(
    r"(?i)\b(dt|took|duration|run[_ ]?time|elapsed(?:[_ ]time)?"
    r"|(?:step|iter(?:ation)?|epoch|train|total)[_ ]time)"
    r"(\s?[:=]\s?)"
    r"(\d{1,4}:\d\d:\d\d(?:\.\d{1,6})?)(?=[\s,;|)\]]|$)"
)
# Of how much a loss is the mean, within its brackets.
_OVER = re.compile(rf" over ({_NUMBER}) (frames|tokens|samples|utterances)\.?(?=\])")
# `loss[loss=2.5, over 9 frames.], tot_loss[loss=2.6]`: the names of a later group are of that group.
_NAMED_GROUP = re.compile(r"\b([A-Za-z]\w{0,30})\[(?=\w{1,40}=)([^\[\]]{1,400})\]")
_NAME = re.compile(r"\b(?=[A-Za-z_]\w{0,40}=)")
# A name and a number with a unit in brackets: `[Wall Clock 54.9s]`.
_IN_BRACKETS = re.compile(rf"\[(?P<key>[A-Za-z][A-Za-z ]{{1,30}}) (?P<value>{_NUMBER}\s?(?i:{_WORDS}))\]")
_GROUPS = re.compile(r"\s{0,8}(?:\[[^\[\]]{1,40}\]){2,20}\s{0,8}")


# A few numbers of one name, as of each group of parameters: `lr=[1e-05, 2e-05]`, `mom: [(0.9, 0.95)]`.
_LISTED = re.compile(
    rf"(?<![\w./=])(?P<key>[A-Za-z_][\w./@-]{{0,80}})\s?[:=]\s?(?P<list>\[[\[(]?{_NUMBER}"
    rf"(?:[\])]?,\s?[\[(]?{_NUMBER}){{0,3}}[\])]{{1,2}})(?=[\s,;|}}]|$)"
)


# The numbers of a name by group: `grad_norm={'0_default': 2.16, '1_fp32': 0.0}`.
_GROUPED = re.compile(
    rf"(?<![\w./=])(?P<key>[A-Za-z_][\w./@-]{{0,80}})\s?[:=]\s?\{{(?P<list>'[\w./-]{{1,60}}':\s?{_NUMBER}"
    rf"(?:,\s?'[\w./-]{{1,60}}':\s?{_NUMBER}){{0,15}})\}}"
)


# A value and its error: `acc=42.86±0.07%`.
_WITH_ERROR = re.compile(
    rf"(?<![\w./=])(?P<key>[A-Za-z_][\w./@-]{{0,60}})(?P<sign>\s?[:=]\s?)(?P<value>{_NUMBER})\s?±\s?(?P<error>{_NUMBER})(?P<unit>%?)"
)


# Several names and their numbers: `Loss span/answer/total=0.77/0.17/0.95`.
_NAMES_AND_NUMBERS = re.compile(
    rf"(?<![\w./=])(?P<of>[A-Za-z]{{2,30}} )?(?P<names>[A-Za-z]\w{{0,30}}(?:/[A-Za-z]\w{{0,30}}){{1,4}})\s?[:=]\s?"
    rf"(?P<numbers>{_NUMBER}(?:/{_NUMBER}){{1,4}})(?=[\s,;|]|$)"
)


def _each_named(match: re.Match[str]) -> str:
    """Write several names with as many numbers as cells."""
    names, numbers = match["names"].split("/"), match["numbers"].split("/")
    if len(names) != len(numbers):
        return match[0]
    of = (match["of"] or "").strip()
    return ", ".join(f"{f'{name} {of}'.strip()}={text}" for name, text in zip(names, numbers, strict=True))


def _listed(match: re.Match[str]) -> str:
    """Write the numbers of a list as cells, the first one under the name of the list."""
    numbers = [number.strip("[]() ") for number in match["list"].split(",")]
    return ", ".join(f"{match['key']}{f'_{place}' * (place > 0)}={text}" for place, text in enumerate(numbers))


def _grouped(match: re.Match[str]) -> str:
    """Write the numbers of groups as cells, the first one under the name that they share."""
    cells = [part.partition(":") for part in match["list"].split(",")]
    names = [f"{match['key']}_{name.strip()[1:-1]}" for name, _, _ in cells]
    return ", ".join(
        f"{name}={text.strip()}" for name, (_, _, text) in zip([match["key"], *names[1:]], cells, strict=True)
    )


def _with_signs(text: str) -> str:
    """Write averages in brackets, sentences, lists, groups, counts of a total and durations as cells with signs."""
    if "[" in text:
        text = _LISTED.sub(_listed, text)
    if "{'" in text:
        text = _GROUPED.sub(_grouped, text)
    if "±" in text:
        text = _WITH_ERROR.sub(r"\g<key>\g<sign>\g<value>\g<unit>, \g<key>_error\g<sign>\g<error>\g<unit>,", text)
    if "(" in text:
        text = _with_averages(_OF_STEPS.sub("elapsed since last", text))
    if " is " in text and _IS.search(text):
        text = _SENTENCE_END.sub("; ", _IS.sub(": ", text))
    if "/" in text:
        text = _OF_TOTAL.sub(r"\1", _NAMES_AND_NUMBERS.sub(_each_named, text))
    if ":" in text:
        text = _DURATION.sub(lambda match: f"{match[1]}{match[2]}{duration_seconds(match[3]) or 0:g}s", text)
    if "[" in text:
        text = _IN_BRACKETS.sub(r" \g<key>: \g<value>, ", text)
    if " over " in text:
        text = _OVER.sub(r" \2=\1", text)
    if text.count("[") > 1 and "=" in text:
        text = _with_group_names(text)
    if "][" in text and _GROUPS.fullmatch(text):
        text = text.strip().strip("[]").replace("][", " | ")
    return text


def _with_averages(text: str) -> str:
    signs = [match["sign"] for match in _AVERAGED.finditer(text)]
    if len(signs) < MIN_AVERAGES and "=" not in signs:
        return text
    mark = next((mark for mark in (" | ", "\t", " - ", ", ") if mark in text), ", " if "" in signs else " ")
    end = mark if "" in signs else ""
    return _AVERAGED.sub(rf"\g<key>\g<sign>\g<value>{mark}\g<key>{AVERAGE}\g<sign> \g<average>{end}", text)


def _with_group_names(text: str) -> str:
    groups = list(_NAMED_GROUP.finditer(text))
    for group in reversed(groups[1:]):
        cells = _NAME.sub(f"{group[1]} ", group[2])
        text = f"{text[: group.start(2)]}{cells}{text[group.end(2) :]}"
    return text


def named_behind(text: str) -> tuple[list[Pair], str]:
    """Return the cells of a line whose parts are all values with their names behind them, and what is in front of them.

    There are no cells in any other line.
    """
    ahead = _AHEAD.match(text)
    begin = ahead.end() if ahead is not None and known_name(ahead["words"].strip(" [(")) is None else 0
    if ":" in text[begin:]:
        return [], text
    parts = [part for part in _PARTS.split(text[begin:]) if part.strip()]
    if len(parts) > MIN_BEHIND and to_float(parts[0].strip()) is not None:
        begin = text.index(parts[0], begin) + len(parts.pop(0))  # `100: 12.3, 13.4 avg loss, 3.5 seconds`
    matches = [match for part in parts if (match := _BARE.match(part) or _NAMED_BEHIND.match(part)) is not None]
    named = [match for match in matches if match.re is _NAMED_BEHIND]
    is_short = len(parts) < MIN_BEHIND and not any(known_name(match["key"]) for match in named)
    if not named or len(matches) < len(parts) or is_short:
        return [], text
    return [_pair(_name_behind(match), match) for match in matches], text[:begin]


def _name_behind(match: re.Match[str]) -> str:
    """Return the name behind a value; a time without one, or of the `run`, is that of a whole step."""
    name, unit = match["key"], match["unit"] or ""
    is_of_step = unit.lower() in _TIME and name in (None, "run", "step", "iteration")
    return "step time" if is_of_step else name or unit


def _blanked(text: str, matches: Iterable[re.Match[str]]) -> str:
    """Replace what was read by bars, so that no number counts twice."""
    for match in matches:
        text = text[: match.start()] + "|" * (match.end() - match.start()) + text[match.end() :]
    return text


def _sentences(text: str) -> list[str]:
    """Split a line without bars at tabs or dashes between cells, or at commas that end one."""
    for mark in ("\t", " - "):
        parts = text.split(mark)
        if len(parts) > MIN_MARKS or (len(parts) > 1 and all(map(_SPACED.match, parts))):
            return parts
    return text.split(", ") if ", " in text else [text]


# A name and its value, and another name and value behind them: `loss 2.5 lr 3e-4`.
_OF_TWO = r"(?:(?:batch|data|grad|gradient|iteration|iter|learning|max|peak|step|train|training|val)\s)?"
_IN_TURN = rf"(?P<key>(?!(?:of|in|at|to|for|by|and)\s){_OF_TWO}[A-Za-z][\w./-]{{0,60}})\s{{1,8}}(?P<value>{_NUMBER})"
_NAME_VALUE = re.compile(rf"{_IN_TURN}(?P<unit>\s?(?i:{_WORDS})(?![\w/])|[%KM])?(?=[\s,;]|\.?$)")
# The same where a name reads as a unit: `lr 1e-4 s/step 1.24`.
_NAME_UNITED = re.compile(rf"{_IN_TURN}(?P<unit>(?i:{_WORDS})(?![\w/])|[%KM])?(?=[\s,;]|\.?$)")


def _without_signs(part: str, *, is_cell: bool) -> tuple[list[Pair], str]:
    """Read a part without colons: one cell, several of them in turn, or a cell with others in brackets behind it.

    Returns the cells, and the text of the others.
    """
    inner = [text for text in _BRACKETS.split(part) if text.strip()]
    if len(inner) > 1 and any(_RATED.search(text) or _SPACED.match(text) for text in inner[1:]):
        read = [_without_signs(text, is_cell=is_cell) for text in inner]
        return [cell for cells, _ in read for cell in cells], " ".join(text for _, text in read)
    if (cell := _single(part, is_cell=is_cell)) is not None:
        return [cell], ""
    for pattern in (_NAME_VALUE, _NAME_UNITED):
        in_turn = list(pattern.finditer(part))
        if len(in_turn) > 1 and not _BETWEEN.sub("", pattern.sub("", part)):
            return [_pair(match["key"], match) for match in in_turn], ""
    rated = _rates(part)
    return [_pair(match["unit"], match) for match in rated], _blanked(part, rated)


# Behind the name of a value: `acc 0.5 img/s 1234` has no 0.5 img/s.
_VALUE_BEHIND = re.compile(rf"\s{{1,8}}{_NUMBER}[KMG%]?(?=\s*$|[,;]|\s+[A-Za-z][\w/.-]{{0,40}}\s+[+-]?\d)")


def _rates(text: str) -> list[re.Match[str]]:
    """Return the rates of a text that are not the name of the number behind them."""
    return [match for match in _RATED.finditer(text) if _VALUE_BEHIND.match(text, match.end()) is None]


_BETWEEN = re.compile(r"[\s,;]|\.$")
_BRACKETS = re.compile(r"\s\(|\)\s*$")


def _single(part: str, *, is_cell: bool) -> Pair | None:
    """Read a part that is one cell without a colon: `lr 3.00e-04`, `36.58 ms`, `9.2% bf16 MFU`.

    A time without a name is the time of the step only where it is a cell of its own, between bars.
    """
    if len(part) > 120:
        return None
    match = _SPACED.match(part)
    if match:
        return _pair(match["key"], match)
    match = _BARE.match(part) or (_NAMED_BEHIND.match(part) if is_cell else None)
    if match is None:
        return None
    unit = match["unit"] or ""
    if unit == "%" and not match["key"]:  # the share of the steps that are done
        return None
    if not match["key"] and not is_cell and unit.lower() in _TIME:
        return None
    key = match["key"] or ("step time" if unit.lower() in _TIME else unit)
    return _pair(key, match)


def _pair(key: str, match: re.Match[str]) -> Pair:
    text = match["value"]
    return Pair(
        " ".join(key.split()).removesuffix(" is").removesuffix(" was"),
        text,
        (match["unit"] or "").strip(" ()"),
        to_float(text),
    )

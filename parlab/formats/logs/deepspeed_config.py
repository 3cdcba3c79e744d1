"""The configuration that the DeepSpeed engine prints at start: `name .... value` and blocks of JSON."""

from __future__ import annotations

import re
from typing import Any

from parlab.formats.grammar.jsontext import loads
from parlab.formats.grammar.records import Record, unread
from parlab.formats.launch import MAX_ARGUMENTS, flatten, normal_name, typed

_CONFIG = re.compile(r"\s{0,4}([a-z_]\w{0,80})(?: \.{2,}(?:\s|$)|\s{2,})(.*)")
_MAX_JSON = 3_000


class Printed:
    """Collects the configuration, line by line."""

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}
        self.json: list[str] | None = None
        self.json_name = ""

    def line(self, body: str) -> None:
        """Read one line of the configuration."""
        match = _CONFIG.match(body)
        text = match[2].strip() if match else body.strip()
        name = match[1] if match else ""
        if text.endswith("{") and ("= {" in body or text == "{"):
            self.json, self.json_name = ["{"], name if match and text == "{" else body.partition("=")[0].strip()
        elif match and len(self.arguments) < MAX_ARGUMENTS:
            self.arguments.setdefault(normal_name(name), typed(text))

    def json_line(self, line: int, text: str) -> list[Record]:
        """Collect a JSON block up to its closing brace in the first column."""
        assert self.json is not None
        self.json.append(text)
        if not text.startswith("}") and len(self.json) < _MAX_JSON:
            return []
        joined, self.json = "".join(self.json), None
        try:
            data = loads(joined)
        except ValueError:
            return [unread(line, "a printed block that is not valid JSON", self.json_name)]
        prefix = "" if self.json_name == "json" else f"{self.json_name}."
        for name, value in flatten(data, prefix):
            if len(self.arguments) < MAX_ARGUMENTS:
                self.arguments.setdefault(name, value)
        return []

    def close(self, line: int) -> list[Record]:
        """Return the collected settings as a launch."""
        if self.json is not None:
            self.json = None
        if not self.arguments:
            return []
        arguments, self.arguments = self.arguments, {}
        return [Record("launch", line, data=arguments)]

"""The code blocks of docs/use/logging.md by heading, and a process that runs Python blocks one after the other."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[2] / "docs" / "use" / "logging.md"


class Snippet(NamedTuple):
    """One code block; `number` counts those of its heading and language from 0."""

    heading: str
    language: str
    number: int
    source: str


def snippets(page: Path = PAGE) -> Iterator[Snippet]:
    """Yield the code blocks of a page."""
    heading, counts = "", dict[tuple[str, str], int]()
    pattern = r"^#+ (?P<heading>[^\n]+)$|^```(?P<language>\w+)\n(?P<source>.*?)^```$"
    for match in re.finditer(pattern, page.read_text(encoding="utf-8"), re.M | re.S):
        if match["heading"]:
            heading = match["heading"]
            continue
        key = (heading, match["language"])
        yield Snippet(*key, counts.get(key, 0), match["source"])
        counts[key] = counts.get(key, 0) + 1


def snippet(heading: str, language: str = "python", number: int = 0) -> str:
    """Return the source of one code block; raises KeyError where the page has none."""
    for block in snippets():
        if block[:3] == (heading, language, number):
            return block.source
    raise KeyError((heading, language, number))


class Outcome(NamedTuple):
    code: int
    output: str


def run_all(sources: dict[str, str], variables: dict[str, str], directory: Path) -> dict[str, Outcome]:
    """Run Python sources, each in a process of its own; the trainers are imported only once for all of them."""
    (directory / "sources.json").write_text(json.dumps(sources))
    subprocess.run([sys.executable, __file__], cwd=directory, env=variables, check=True)
    return {
        name: Outcome(int((directory / f"{name}.code").read_text()), (directory / f"{name}.output").read_text())
        for name in sources
    }


def _main() -> None:
    import deepspeed
    import lightning.pytorch
    import mlflow
    import torch
    import transformers

    modules = {"deepspeed": deepspeed, "lightning": lightning, "torch": torch, "transformers": transformers}
    torch.set_num_threads(1)
    for name, source in json.loads(Path("sources.json").read_text()).items():
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            Path(f"{name}.code").write_text(str(os.waitstatus_to_exitcode(status)))
            continue
        output = os.open(f"{name}.output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            exec(compile(source, name, "exec"), {"__name__": "__main__", "mlflow": mlflow, **modules})
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            if not isinstance(error, SystemExit):
                traceback.clear_frames(error.__traceback__)
            sys.exit(1)
        sys.exit(0)


if __name__ == "__main__":
    _main()

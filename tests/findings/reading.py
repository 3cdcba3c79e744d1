"""Text -> findings, read by the real readers."""

from __future__ import annotations

from parlab.findings import document_findings
from parlab.formats import read_document
from parlab.formats.schema import Document, Finding


def document_of(text: str, format: str | None = None) -> Document:
    return read_document(text.splitlines(keepends=True), file="text", format=format)


def findings_of(text: str, format: str | None = None) -> list[Finding]:
    return document_findings(document_of(text, format))


def rules_of(text: str, format: str | None = None) -> list[str]:
    return [finding.rule for finding in findings_of(text, format)]


def launch(**arguments: object) -> str:
    """Make an argument dump as Megatron-LM prints it."""
    rows = [f"  {name} {'.' * (46 - len(name))} {value}" for name, value in arguments.items()]
    return "\n".join(
        ["---------------- arguments ----------------", *rows, "------------- end of arguments -------------", ""]
    )


def iteration(number: int, seconds: float, *cells: str, batch: int = 64, consumed: int | None = None) -> str:
    """Make an iteration line as Megatron-LM prints it."""
    consumed = number * batch if consumed is None else consumed
    extra = "".join(f" {cell} |" for cell in cells)
    return (
        f" iteration {number:8d}/    1000 | consumed samples: {consumed:12d} | elapsed time per iteration (ms):"
        f" {seconds * 1e3:.1f} | global batch size: {batch:5d} | lm loss: 8.1E+00 | loss scale: 1.0 |{extra}\n"
    )

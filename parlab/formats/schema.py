"""The output of the readers: one Document per file. docs/use/formats.schema.json is generated from this module."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Number = float | int
Kind = Literal["printed", "average", "cumulative", "smoothed", "derived", "part"]
"""How a number came about: `average` since the start, `smoothed` by a bar, `part` of the step only."""


class Part(BaseModel):
    """A part of the output; unknown names are errors, so that documentation and output agree."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Launch(Part):
    """Arguments of a launch under normal names; null if unknown."""

    world_size: int | None = None
    """Number of processes, one per GPU."""
    data_parallel_size: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    micro_batch_size: int | None = None
    """Sequences in one forward pass of one data parallel rank."""
    global_batch_size: int | None = None
    """Sequences per iteration over all data parallel ranks."""
    gradient_accumulation_steps: int | None = None
    sequence_length: int | None = None
    num_layers: int | None = None
    hidden_size: int | None = None
    num_attention_heads: int | None = None
    precision: str | None = None
    """fp32, fp16, bf16 or fp8."""
    zero_stage: int | None = None
    derived: dict[str, str] = {}
    """Values above that were not printed -> how they follow from the others."""
    arguments: dict[str, Any] = {}
    """All arguments under their printed names."""


class PrintedCell(Part):
    """One cell as printed in the log."""

    value: str
    unit: str = ""
    name: str = ""
    """Name of its normal form in `values`."""
    kind: Kind = "printed"


class StepRecord(Part):
    """One iteration of a log."""

    iteration: int | None = None
    line: int
    time: str | None = None
    """Time stamp as printed."""
    rank: int | None = None
    values: dict[str, float]
    """Normal form: seconds, bytes, samples/s, FLOP/s."""
    printed: dict[str, PrintedCell]
    """Key as printed -> value and unit as printed."""


class StepTime(Part):
    """Seconds per iteration; only `mean_without_first` excludes the first record."""

    median: float
    mean: float
    mean_without_first: float | None = None
    """Null with fewer than two records."""
    p10: float
    p90: float


class Steps(Part):
    """The steps from which the figures are computed."""

    count: int
    first: int | None = None
    last: int | None = None
    total: int | None = None
    """Planned iterations, if the log states them."""
    left_out: list[int] = []
    """Steps that `mean_without_first`, and the figures computed from it, exclude."""
    why: str | None = None


class Statistic(Part):
    """Statistics of one figure over its records."""

    count: int
    first: float
    last: float
    mean: float
    median: float
    min: float
    max: float
    by_rank: dict[str, float] = {}
    """Rank -> its largest value, if ranks print separately."""
    kind: Kind = "printed"


class Memory(Part):
    """GPU memory of a launch in bytes, by printed name (max_allocated, reserved, ...)."""

    ranks: int
    """Number of ranks that printed memory."""
    figures: dict[str, Statistic]
    until: int | None = None
    """Iteration after which memory was last printed, if others follow, as by Megatron-LM: a later peak is unknown."""


class Validation(Part):
    """Losses on held-out data."""

    iteration: int | None = None
    line: int
    values: dict[str, float]


class Loss(Part):
    """The training loss, without skipped iterations."""

    name: str
    first: float
    last: float
    min: float


class End(Part):
    """How the launch ended."""

    state: Literal["finished", "cancelled", "crashed", "unknown"] = "unknown"
    reason: str | None = None


class Lines(Part):
    """A range of lines in the file."""

    first: int
    last: int


class Figure(Part):
    """A figure in prose, a footer or a configuration."""

    value: float | None = None
    """Normal form; null if the text is not a number (`Not runnable`, `Inf`)."""
    low: float | None = None
    high: float | None = None
    """Upper end of the range, if a range is stated."""
    total: float | None = None
    """The total of which the value is a part: `5624MiB - 6176MiB / 40537MiB` is low, high and total."""
    unit: str = ""
    """Unit of the value; the printed one is part of the text."""
    text: str = ""
    """The text from which the value was read."""
    line: int = 0
    section: str | None = None


class Segment(Part):
    """One launch: its arguments, its measurements, and how it ended."""

    launch: Launch = Launch()
    records: int = 0
    """Number of distinct iterations; an iteration of several ranks counts once."""
    first: StepRecord | None = None
    last: StepRecord | None = None
    step_time_s: StepTime | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    tflops_per_gpu: float | None = None
    """TFLOP/s per GPU as printed."""
    skipped_iterations: int | None = None
    gpu_mem_max_bytes: float | None = None
    gpu_util_pct: float | None = None
    timers_s: dict[str, Statistic] = {}
    """Timers are nested (`optimizer` contains `optimizer-*`), so their sum is not meaningful."""
    validation: list[Validation] = []
    loss: Loss | None = None
    end: End = End()
    steps: Steps | None = None
    basis: dict[str, str] = {}
    """Figure -> how it was computed."""
    kinds: dict[str, Kind] = {}
    """Figure -> how its numbers came about, where they are not printed: derived, average, smoothed, part."""
    metrics: dict[str, Statistic] = {}
    """All numbers of the steps, in normal form."""
    memory: Memory | None = None
    figures: dict[str, Figure] = {}
    """Figures stated in the prose near this launch."""
    section: str | None = None
    """Heading above the launch, in a document."""
    lines: Lines | None = None


class Cell(Part):
    """One cell of a table."""

    text: str
    kind: Literal["number", "text", "blank", "failure"]
    value: float | None = None
    """The number in its printed unit."""
    unit: str = ""
    details: dict[str, Any] = {}
    """Settings in parentheses after the number: `(gas = 1, mbs = 64)`."""


class Table(Part):
    """A complete table, including blank rows and failure markers."""

    section: str | None = None
    title: str | None = None
    line: int
    columns: list[str]
    """One name per column; header rows are joined."""
    header: list[list[str]]
    """Header rows as printed."""
    align: list[Literal["left", "right", "center", ""]] = []
    rows: list[list[Cell]]


class Image(Part):
    """A picture to which a document refers."""

    section: str | None = None
    line: int
    source: str
    alt: str = ""


class Config(Part):
    """A configuration within a document, or the file itself."""

    section: str | None = None
    line: int
    data: Any


class UnreadLine(Part):
    """A line or value that could not be read."""

    line: int
    reason: str
    text: str


class Unread(Part):
    """Lines and values that could not be read: their number, and the first examples."""

    lines: int = 0
    examples: list[UnreadLine] = []


class Event(Part):
    """Lines that hold numbers and are no measurements: their number, and the first and the last of them."""

    count: int
    first: int
    last: int


class Place(Part):
    """The place of a finding; only the parts that identify it are set."""

    segment: int | None = None
    """Index in `segments`."""
    table: int | None = None
    """Index in `tables`."""
    row: int | None = None
    """Index in the table's `rows`; null for the whole column."""
    column: int | None = None
    """Index in the table's `columns`."""
    figure: str | None = None
    """Name of a figure, timer or setting."""
    index: int | None = None
    """Index in `figures[figure]`, or in `configs` for a setting of a configuration."""
    run: int | None = None
    """Number of a run of an experiment."""


class Finding(Part):
    """Two numbers that contradict each other, or are easily misread; nothing is corrected."""

    rule: str
    """Name of the rule in docs/understand/findings.md."""
    severity: Literal["info", "warning", "error"]
    message: str
    """The contradiction, with both numbers and their units."""
    numbers: dict[str, float] = {}
    """The compared numbers, by name."""
    where: Place = Place()
    lines: list[int] = []
    """Lines of the file that state the numbers."""


class Document(Part):
    """The content of one file."""

    file: str
    format: str
    lines: int = 0
    """Number of lines in the file."""
    segments: list[Segment] = []
    tables: list[Table] = []
    figures: dict[str, list[Figure]] = {}
    images: list[Image] = []
    configs: list[Config] = []
    findings: list[Finding] = []
    """Contradictions that parlab.findings finds in the document; empty in the output of the readers."""
    unread: Unread = Unread()
    events: dict[str, Event] = {}
    """Kind of event (setting, checkpoint, overflow, other work, ...) -> its lines."""
    notes: list[str] = []
    """What to know before the figures: a large part of the file is unread, or no format defines its lines."""

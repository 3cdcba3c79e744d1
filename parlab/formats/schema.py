"""The output: one Document per file. docs/formats.schema.json is generated from here."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Number = float | int


class Part(BaseModel):
    """A part of the output; unknown names are errors, so that docs and output stay the same."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Launch(Part):
    """Arguments of a launch under normal names; null where nothing says."""

    world_size: int | None = None
    """Processes, one per GPU."""
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
    """Values above that nobody printed -> how they follow from the others."""
    arguments: dict[str, Any] = {}
    """All original arguments, under the names they were printed with."""


class PrintedCell(Part):
    """One cell as the log printed it."""

    value: str
    unit: str = ""
    name: str = ""
    """Name of its normal form in `values`."""


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
    """Seconds per iteration; the first record is in all but `mean_without_first`."""

    median: float
    mean: float
    mean_without_first: float | None = None
    """Null with fewer than two records."""
    p10: float
    p90: float


class Steps(Part):
    """Which steps the figures are made of."""

    count: int
    first: int | None = None
    last: int | None = None
    total: int | None = None
    """Iterations that were planned, where the log says."""
    left_out: list[int] = []
    """Steps that `mean_without_first` and what is made of it leave out."""
    why: str | None = None


class Statistic(Part):
    """One figure over its records."""

    count: int
    first: float
    last: float
    mean: float
    median: float
    min: float
    max: float
    by_rank: dict[str, float] = {}
    """Rank -> largest value it printed, where ranks speak for themselves."""


class Memory(Part):
    """GPU memory of a launch in bytes; a key is what was printed (max_allocated, reserved, ...)."""

    ranks: int
    """Ranks that spoke."""
    figures: dict[str, Statistic]


class Validation(Part):
    """Losses on held-out data."""

    iteration: int | None = None
    line: int
    values: dict[str, float]


class Loss(Part):
    """The training loss; a skipped iteration has none."""

    name: str
    first: float
    last: float
    min: float


class End(Part):
    """How the launch ended."""

    state: Literal["finished", "cancelled", "crashed", "unknown"] = "unknown"
    reason: str | None = None


class Lines(Part):
    """Where in the file."""

    first: int
    last: int


class Figure(Part):
    """One figure named in prose, a footer or a configuration."""

    value: float | None = None
    """Normal form; null where the text gives words (`Not runnable`, `Inf`)."""
    low: float | None = None
    high: float | None = None
    """The range, where one is stated."""
    total: float | None = None
    """What the value is a part of: `5624MiB - 6176MiB / 40537MiB` is low, high and total."""
    unit: str = ""
    """Unit as printed."""
    text: str = ""
    """The words it was read from."""
    line: int = 0
    section: str | None = None


class Segment(Part):
    """One launch: what it was told, what it measured, how it ended."""

    launch: Launch = Launch()
    records: int = 0
    """Distinct iterations; the same one from several ranks counts once."""
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
    """Timers nest (`optimizer` holds `optimizer-*`): never add them up blindly."""
    validation: list[Validation] = []
    loss: Loss | None = None
    end: End = End()
    steps: Steps | None = None
    basis: dict[str, str] = {}
    """Figure -> what it was made of."""
    metrics: dict[str, Statistic] = {}
    """Every number of the steps, in normal form."""
    memory: Memory | None = None
    figures: dict[str, Figure] = {}
    """Figures that prose near this launch states."""
    section: str | None = None
    """Heading it stands under, in a document."""
    lines: Lines | None = None


class Cell(Part):
    """One cell of a table."""

    text: str
    kind: Literal["number", "text", "blank", "failure"]
    value: float | None = None
    """The number, in the unit it was printed with."""
    unit: str = ""
    details: dict[str, Any] = {}
    """Settings in brackets behind the number: `(gas = 1, mbs = 64)`."""


class Table(Part):
    """A table, complete: blank rows and failure words are kept."""

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
    """A picture a document refers to."""

    section: str | None = None
    line: int
    source: str
    alt: str = ""


class Config(Part):
    """A configuration that stands in a document or is the file itself."""

    section: str | None = None
    line: int
    data: Any


class UnreadLine(Part):
    """One thing that could not be read."""

    line: int
    reason: str
    text: str


class Unread(Part):
    """What could not be read: how much, and the first examples."""

    lines: int = 0
    examples: list[UnreadLine] = []


class Place(Part):
    """What a finding doubts; only the parts that lead there are set."""

    segment: int | None = None
    """Index in `segments`."""
    table: int | None = None
    """Index in `tables`."""
    row: int | None = None
    """Index in the table's `rows`; null where the whole column is meant."""
    column: int | None = None
    """Index in the table's `columns`."""
    figure: str | None = None
    """Name of a figure, timer or setting."""
    index: int | None = None
    """Which of several: index in `figures[figure]`, or in `configs` for a setting of a configuration."""
    run: int | None = None
    """Number of a run of an experiment."""


class Finding(Part):
    """Two numbers that cannot both be true, or that a reader of them should know of; nothing was corrected."""

    rule: str
    """Name of the rule in docs/findings.md."""
    severity: Literal["info", "warning", "error"]
    message: str
    """What disagrees, with both numbers and their units."""
    numbers: dict[str, float] = {}
    """The numbers compared, by name."""
    where: Place = Place()
    lines: list[int] = []
    """Lines of the file that say so."""


class Document(Part):
    """Everything read from one file."""

    file: str
    format: str
    lines: int = 0
    """Lines of the file."""
    segments: list[Segment] = []
    tables: list[Table] = []
    figures: dict[str, list[Figure]] = {}
    images: list[Image] = []
    configs: list[Config] = []
    findings: list[Finding] = []
    """Contradictions; parlab.findings finds them in the rest of the document."""
    unread: Unread = Unread()

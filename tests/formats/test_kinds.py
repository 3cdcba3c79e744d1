"""A number has a kind: averages, clocks, shares and parts of a step are not taken for what a step measures."""

from __future__ import annotations

import pytest

from parlab.formats import Document, read_document
from parlab.formats.grammar.metric_fields import metric_field
from parlab.formats.grammar.quantities import CHOICES, QUANTITIES, known_name, known_to, quantity_of_metric
from parlab.formats.schema import Segment


def read(text: str, format: str | None = None) -> Document:
    return read_document(text.splitlines(keepends=True), file="test", format=format)


def only(text: str) -> Segment:
    (segment,) = read(text).segments
    return segment


def test_an_average_since_the_start_is_no_step_time_where_a_clock_gives_the_times() -> None:
    lines = [
        f"step:{n}/900 train_loss:3.{n} train_time:{ms}ms step_avg:{ms / n:.2f}ms\n"
        for n, ms in ((100, 9_000), (150, 11_500), (200, 13_900))
    ]
    segment = only("".join(lines))
    times = segment.metrics["step_time_s"]
    assert [round(seconds, 6) for seconds in (times.first, times.last)] == [0.05, 0.048]
    assert segment.kinds["step_time_s"] == times.kind == "derived"
    assert segment.metrics["average_step_time_s"].kind == "average"


def test_an_average_is_shown_and_marked_where_there_is_nothing_else() -> None:
    segment = only("".join(f"step {n}: loss 2.{n}, avg step time: {500 + n} ms\n" for n in (1, 2, 3)))
    assert segment.step_time_s is not None
    assert (segment.step_time_s.median, segment.kinds["step_time_s"]) == (0.503, "average")
    assert "step_time_s" not in segment.metrics


def test_the_speed_of_ms_swift_is_an_average_and_its_clock_gives_the_step() -> None:
    entry = "{{'loss': 0.4, 'train_speed(iter/s)': 0.02, 'epoch': 0.1, "
    entry += "'global_step/max_steps': '{}/90', 'elapsed_time': '{}'}}\n"
    segment = only(entry.format(12, "18m 26s") + entry.format(14, "21m 30s"))
    assert segment.step_time_s is not None
    assert (segment.step_time_s.median, segment.kinds["step_time_s"]) == (92.0, "derived")


def test_a_clock_that_is_too_coarse_for_a_step_gives_no_step_time() -> None:
    segment = only("".join(f"step {n} | loss: 2.{n} | elapsed: {n} s\n" for n in (1, 2, 3)))
    assert segment.step_time_s is None


@pytest.mark.parametrize(
    ("printed", "mfu"),
    [(("0.43", "0.44", "0.42"), 0.42), (("42.46", "42.50", "42.40"), 0.424), (("0.9", "39.5", "40.0"), 0.4),
     (("337.25", "337.59"), 3.3759)],
)  # fmt: skip
def test_the_values_of_a_file_tell_whether_a_mfu_is_a_fraction_or_per_cent(
    printed: tuple[str, ...], mfu: float
) -> None:
    text = "".join(
        f"step: {n}, loss: 2.5, tokens_per_second: 8000.5, mfu: {share}\n" for n, share in enumerate(printed, 1)
    )
    assert only(text).metrics["mfu"].last == pytest.approx(mfu)


def test_the_timers_of_an_engine_are_a_part_of_the_step() -> None:
    line = "[2026-01-08 20:03:15,649] [INFO] [logging.py:68:log_dist] [Rank 0] time (ms) | "
    line += "fwd: 400.0 | bwd: 700.0 | step: 100.0\n"
    segment = only(line * 2)
    assert segment.kinds["step_time_s"] == "part"


def test_the_rate_of_a_bar_is_smoothed() -> None:
    segment = only("".join(f"{n}%|#| {n}/100 [00:0{n}<01:40, 1.5{n}s/it, loss=2.1]\n" for n in (1, 2, 3)))
    assert (segment.kinds["step_time_s"], segment.metrics["elapsed_s"].kind) == ("smoothed", "cumulative")


def test_gpus_follow_from_the_rates_of_all_and_of_one() -> None:
    text = "".join(f"step {n} | loss: 2.5 | tok/s: 8,00{n} | tok/s/gpu: 1,000\n" for n in (1, 2, 3))
    launch = only(text).launch
    assert (launch.world_size, launch.derived["world_size"]) == (8, "tokens per second / tokens per second and GPU")


def test_the_step_time_follows_from_tokens_and_rate() -> None:
    head = "[titan] 2026-01-01 10:00:0{},000 - root - INFO - ".format
    sizes = "Trainer is initialized with local batch size 8, global batch size 8, sequence length 1024, total steps 10"
    steps = "".join(f"{head(n)}step: {n}  loss: 2.5  memory: 1.00GiB(1.5%)  tps: 2,048\n" for n in (1, 2, 3))
    segment = only(f"{head(0)}{sizes}\n{head(0)}Building device mesh with parallelism: pp=1, dp_shard=2, tp=1\n{steps}")
    assert segment.step_time_s is not None
    assert (segment.step_time_s.median, segment.kinds["step_time_s"]) == (2.0, "derived")


@pytest.mark.parametrize(
    ("key", "unit", "name", "kind"),
    [
        ("throughput (avg)", "tokens/s", "average_tokens_per_s", "average"),
        ("running_avg_tokens_per_sec", "", "average_tokens_per_s", "average"),
        ("step time (smoothed)", "ms", "average_step_time_s", "smoothed"),
        ("global_avg_loss", "", "loss", "printed"),
        ("elapsed", "s", "elapsed_s", "cumulative"),
        ("data_time", "s", "data_time_s", "printed"),
    ],
)
def test_the_words_of_a_key_tell_the_kind(key: str, unit: str, name: str, kind: str) -> None:
    field = metric_field(key, unit)
    assert (field.name, field.kind) == (name, kind)


def test_each_alias_has_one_meaning() -> None:
    seen: dict[tuple[str, str], str] = {}
    for quantity in QUANTITIES:
        for alias in quantity.aliases:
            trainer, _, names = alias.rpartition(": ") if ": " in alias else ("", "", alias)
            own = names.split(" [")[0].removesuffix(" ?")
            for name in own.split("; ") if trainer else own.split():
                assert seen.setdefault((trainer, name), quantity.name) == quantity.name, (trainer, name)
    assert len(seen) > 200


def test_a_person_chooses_from_the_same_table() -> None:
    assert CHOICES["memory_peak_gib"].meaning == ("memory_peak_bytes", 2.0**30)
    assert quantity_of_metric("perf/tflops_per_gpu") == ("tflops_per_gpu", 1.0)
    assert quantity_of_metric("memory/max_active(GiB)") == ("memory_active_bytes", 2.0**30)
    assert quantity_of_metric("memory/max_active(%)") is None
    assert quantity_of_metric("mfu(%)") == ("mfu", 0.01)
    assert known_to("torchtitan")["tps"].quantity.per == "GPU"
    known = known_name("gpu_mem_peak_mb")
    assert known is not None
    assert (known.quantity.name, known.scale) == ("max_allocated_bytes", 2.0**20)


def test_a_time_without_a_unit_keeps_its_printed_name() -> None:
    segment = only("".join(f"step: {n}, loss: 2.5, step_time: 0.5, lr: 0.1\n" for n in (1, 2, 3)))
    assert segment.step_time_s is None
    assert segment.metrics["step_time"].last == 0.5
    segment = only("".join(f"step: {n}, loss: 2.5, step_time_sec: 0.5, lr: 0.1\n" for n in (1, 2, 3)))
    assert segment.step_time_s is not None


def test_an_elapsed_time_that_goes_up_and_down_is_no_clock() -> None:
    noisy = (1.2011, 1.2511, 1.2231, 1.2972, 1.3481, 1.4012, 1.4534)
    segment = only("".join(f"step {n} | loss: 2.{n} | elapsed: {time} s\n" for n, time in enumerate(noisy, 1)))
    assert segment.step_time_s is None
    steady = (1.25, 2.5, 3.75, 5.0, 6.25, 7.5)
    segment = only("".join(f"step {n} | loss: 2.{n} | elapsed: {time} s\n" for n, time in enumerate(steady, 1)))
    assert segment.step_time_s is not None
    assert (segment.step_time_s.median, segment.kinds["step_time_s"]) == (1.25, "derived")

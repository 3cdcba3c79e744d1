"""How numbers are written: three digits, SI prefixes, narrow spaces."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.charts import format as numbers
from parlab.charts.format import DASH, SPACE, in_sentence


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (6.64, "6.64"),
        (11.21, "11.2"),
        (11.35, "11.4"),
        (0.012345, "0.0123"),
        (999.6, "1,000"),
        (9.996, "10.0"),
        (12345, "12,300"),
        (-12345, "\N{MINUS SIGN}12,300"),
        (0, "0"),
        (7, "7.00"),
        (None, DASH),
        (math.nan, DASH),
        (math.inf, DASH),
    ],
)
def test_numbers_have_three_significant_digits(value: float | None, text: str) -> None:
    assert numbers.significant(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (6.64, "s", "6.64 s"),
        (0.00664, "s", "6.64 ms"),
        (0.9996, "s", "1.00 s"),
        (12.5e-6, "s", "12.5 \N{MICRO SIGN}s"),
        (4000.0, "s", "4,000 s"),
        (8.23 * 2**30, "B", "8.23 GiB"),
        (512.0, "B", "512 B"),
        (19_700.0, "tokens/s", "19.7 k tokens/s"),
        (4_820.0, "tokens/s", "4,820 tokens/s"),
        (1.42e14, "FLOP/s", "142 TFLOP/s"),
        (0.0123, "samples/s", "0.0123 samples/s"),
        (None, "s", DASH),
    ],
)
def test_quantities_carry_unit_and_prefix(value: float | None, unit: str, text: str) -> None:
    assert numbers.quantity(value, unit).replace(SPACE, " ") == text


@given(st.floats(min_value=1e-12, max_value=1e17))
def test_a_written_quantity_is_the_value_to_three_digits(value: float) -> None:
    unit = numbers.unit_for([value], "samples/s")
    written = float(numbers.significant(value / unit.factor).replace(",", ""))
    assert written * unit.factor == pytest.approx(value, rel=0.0051)


def test_a_column_takes_the_unit_of_its_median_and_ignores_what_is_missing() -> None:
    assert numbers.unit_for([None, 0.3, 0.4, 5.0, math.nan], "s").name == "ms"
    assert numbers.unit_for([None, 3.0, 4.0, 5.0], "s").name == "s"
    assert numbers.unit_for([], "B").name == "GiB"


def test_all_digits_are_kept_for_the_hover() -> None:
    assert numbers.exact(0.1234567890123) == "0.1234567890123"
    assert numbers.exact(229_000_000.0) == "229000000"
    assert numbers.exact_quantity(None, "s") == DASH


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (8, "8 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
        (180_000_000, "2,083 d 8 h"),
        (-5, "0 s"),
    ],
)
def test_durations_name_two_parts_at_most(seconds: float, text: str) -> None:
    assert numbers.duration(seconds).replace(SPACE, " ") == text


def test_changes_have_a_sign_and_a_range_of_them_one_unit() -> None:
    assert numbers.signed_percent(-0.208).replace(SPACE, " ") == "\N{MINUS SIGN}20.8 %"
    assert numbers.signed_range(-0.004, 0.161).replace(SPACE, " ") == "\N{MINUS SIGN}0.4 to +16.1 %"


def test_coarse_durations_name_one_part() -> None:
    assert numbers.duration(299, coarse=True).replace(SPACE, " ") == "4 min"


def test_fields_and_values_read_like_words() -> None:
    assert numbers.field_title("train.micro_batch_size") == "Micro batch size"
    assert numbers.field_title("network") == "Network"
    assert [numbers.field_value(value) for value in (None, True, 1e-4, "gpipe", 4)] == [
        "none",
        "yes",
        "0.0001",
        "gpipe",
        "4",
    ]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (11.21, "s", "11.21 s"),
        (2502.236, "samples/s", "2,502.236 samples/s"),
        (0.01121, "s", "11.21 ms"),
        (12.41 * 2**30, "B", "12.41 GiB"),
        (512 / 3, "samples/s", "171 samples/s"),
        (0.123456789, "s", "123 ms"),
        (43.0, "s", "43.0 s"),
        (math.nan, "s", DASH),
        (0.0, "s", "0 s"),
    ],
)
def test_a_number_of_a_file_keeps_its_digits(value: float, unit: str, text: str) -> None:
    digits = numbers.printed_digits(value, unit)
    assert numbers.quantity(value, unit, digits).replace(SPACE, " ") == text


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([11.21, 9.5, None], ["11.21", "9.50", DASH]),
        ([2502.236, 2400.0], ["2,502.236", "2,400.000"]),
        ([1234567.0, 12.345], ["1,234,567.000", "12.345"]),
        ([100 / 3, 9.0], ["33.33", "9.00"]),
        ([125.0, 0.00125], ["125", "0.00125"]),
        ([], []),
    ],
)
def test_a_column_has_one_precision(values: list[float | None], texts: list[str]) -> None:
    unit = numbers.for_column(numbers.Unit(1.0, "s", "s"), ((value, True) for value in values))
    assert [numbers.in_column(value, unit) for value in values] == texts


def test_a_title_inside_a_sentence_keeps_its_units_and_abbreviations() -> None:
    assert in_sentence("Compute per device (TFLOP/s)") == "compute per device (TFLOP/s)"
    assert in_sentence("MFU (%)") == "MFU (%)"

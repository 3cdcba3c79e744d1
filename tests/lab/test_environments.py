"""Names that programs use are words on pages."""

from __future__ import annotations

from parlab.lab.selectors.environments import basis_in_words, environment_rows


def test_an_environment_has_names_in_words_and_nothing_that_is_empty() -> None:
    rows = dict(
        environment_rows(
            {
                "links": {"why_not": "", "has_netem": False},
                "cpu_cores": 2,
                "packages": {"pytorch-lightning": "2.6.6"},
                "variables": {"NCCL_DEBUG": "WARN"},
                "matmul": {"flops": {"fp32": {"2": 4.47688e10}}},
                "rates": {"device": "CPU process", "memory": 9e9},
                "torch": "2.13.0+cpu",
                "a_name": "x",
            }
        )
    )
    assert rows == {
        "Links can be emulated": "no",
        "Cores": "2",
        "pytorch-lightning": "2.6.6",
        "NCCL_DEBUG": "WARN",
        "Matrix rate in fp32, 2 processes": "44.8\N{NARROW NO-BREAK SPACE}GFLOP/s",
        "PyTorch": "2.13.0+cpu",
        "A name": "x",
    }
    why = environment_rows({"links": {"why_not": "needs root"}})
    assert why == [("Links cannot be emulated", "needs root")]


def test_the_basis_of_numbers_has_no_names_of_fields() -> None:
    warm = "step_time_s: {} records; mean_without_first excludes the first as warm-up; samples_per_s: as printed"
    assert basis_in_words(warm.format(1)) == "Step time: 1 record; Throughput: as printed"
    assert basis_in_words(warm.format(9)) == (
        "Step time: 9 records; the mean leaves out the first as warm-up; Throughput: as printed"
    )
    measured = "median of 46 steps (3 to 48), slowest rank of each; steps 1 to 2 left out as warm-up"
    assert basis_in_words(measured) == measured

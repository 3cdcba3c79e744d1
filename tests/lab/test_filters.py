"""The filter language of lists: the matches of terms, and errors for invalid terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from parlab.lab.models import Attempt, Config, Experiment, Run
from parlab.lab.selectors import filters
from parlab.lab.selectors.lists import experiment_list, run_list
from parlab.lab.services.archive import experiments_archive
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.tagging import experiments_tag
from runners.config import RunConfig

pytestmark = [pytest.mark.django_db, pytest.mark.database]

GIB = 2**30


@pytest.fixture
def runs(make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]) -> list[Run]:
    """A small fast run, a large slower run, and a run that ran out of memory."""
    kinds: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("finished", {"tensor_parallel_size": 2}, {"samples_per_s": 250.0, "memory_max_bytes": 4 * GIB}),
        ("finished", {"data_parallel_size": 4, "engine": "zero"}, {"samples_per_s": 80.0, "step_time_s": 0.75}),
        ("oom", {"pipeline_parallel_size": 2, "engine": "pipeline"}, {"memory_max_bytes": 16 * GIB}),
    ]
    runs: list[Run] = []
    for state, parallel, numbers in kinds:
        engine = parallel.get("engine", "megatron")
        data = {
            "model": {"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4},
            "train": {"global_batch_size": 8, "micro_batch_size": 2, "seed": 7},
            "parallel": {"engine": engine, **parallel},
        }
        attempt = make_attempt(state=state, config=make_config(data=data), point={"n": len(runs)})
        resolved = RunConfig.model_validate(data).resolved()
        summary = {"ms_per_sample": 12.5, "mfu": 0.41} if state == "finished" else {}
        Run.objects.filter(pk=attempt.run_id).update(resolved=resolved, summary=summary, **numbers)
        runs.append(Run.objects.get(pk=attempt.run_id))
    return runs


def numbers(query: str) -> list[int]:
    """Return the numbers of the runs that match a filter; fail on an invalid term."""
    result = run_list(query=query, page=None, sort="run")
    assert not result.filter.problems, result.filter.problems
    return sorted(line.run.number for line in result.rows)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [1, 2, 3]),
        ("engine:megatron", [1]),
        ("ENGINE:Megatron", [1]),
        ("engine:mega*", [1]),
        ("engine!=megatron", [2, 3]),
        ("-engine:megatron", [2, 3]),
        ("engine:zero,pipeline", [2, 3]),
        ("gpus>=4", [2]),
        ("gpus:>=4", [2]),
        ("gpus:2", [1, 3]),
        ("gpus<4 state:oom", [3]),
        ("tp:2", [1]),
        ("tensor_parallel_size:2", [1]),
        ("micro_batch:2 global_batch:8", [1, 2, 3]),
        ("samples_per_s>100", [1]),
        ("samples_per_s>0.1k", [1]),
        ("throughput<=80", [2]),
        ("memory>8GiB", [3]),
        ("memory>4GB", [1, 3]),
        ("step_time<800ms", [2]),
        ("step_time:0.75", [2]),
        ("ms_per_sample<13", [1, 2]),
        ("mfu>40%", [1, 2]),
        ("mfu>0.5", []),
        ("state:finished,oom", [1, 2, 3]),
        ("state!=finished", [3]),
        ("train.seed:7", [1, 2, 3]),
        ("train.recompute:none", [1, 2, 3]),
        ("train.recompute:full", []),
        ("parallel.zero_stage>0", []),
        ("model.num_layers>=4", [1, 2, 3]),
        ("model.num_layers:4", [1, 2, 3]),
        ("parallel.sequence_parallel:no", [1, 2, 3]),
        ("launcher.memory_limit_mib:none", [1, 2, 3]),
        ("run>1", [2, 3]),
        ("origin:imported", []),
        ('schedules "Pipeline sched"', [1, 2, 3]),
        ("nothing-like-it", []),
    ],
)
def test_terms_select_runs(runs: list[Run], query: str, expected: list[int]) -> None:
    assert numbers(query) == expected


def test_all_run_terms_must_match_the_same_run(runs: list[Run]) -> None:
    assert len(experiment_list(query="engine:megatron samples_per_s>100", page=None).rows) == 1
    assert not experiment_list(query="engine:megatron state:oom", page=None).rows


def test_the_list_of_experiments_counts_matching_runs(runs: list[Run]) -> None:
    row = experiment_list(query="state:finished", page=None).rows[0]
    assert [(count.state, count.number) for count in row.states] == [("finished", 2)]
    row = experiment_list(query="engine:zero", page=None).rows[0]
    assert sum(count.number for count in row.states) == 1


def test_tags_owner_name_and_archive_narrow_experiments(runs: list[Run], user: User) -> None:
    other = experiment_create(name="ZeRO on eight GPUs", owner=user)
    experiments_tag(experiments=[other], name="V100")

    def slugs(query: str) -> list[str]:
        result = experiment_list(query=query, page=None)
        assert not result.filter.problems
        return sorted(row.experiment.slug for row in result.rows)

    assert slugs("tag:v100") == slugs("v100") == slugs("name:zero") == ["zero-on-eight-gpus"]
    assert slugs("-tag:v100") == ["pipeline-schedules"]
    assert slugs("owner:ada") == ["pipeline-schedules", "zero-on-eight-gpus"]
    experiments_archive(experiments=[other])
    assert slugs("") == ["pipeline-schedules"]
    assert slugs("is:archived") == ["zero-on-eight-gpus"]
    assert run_list(query="", page=None).page.paginator.count == 3


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("enigne:x", "did you mean engine?"),
        ("florp:x", "Unknown field florp; fields are tag, name, "),
        ("state:ooom", "Unknown state ooom; did you mean oom?"),
        ("gpus>lots", "Invalid number lots for gpus: write, for example, gpus>16."),
        ("memory>8GHz", "Invalid number 8GHz for memory: write, for example, memory>8GiB."),
        ("engine>3", "engine is a text field without an order"),
        ("tag>3", "tag is a text field: write tag:3."),
        ("is:nice", "Unknown term is:nice"),
        ("gpus>1,2", "gpus > takes one value, not 2."),
        ("model.num_layers>many", "Invalid number many"),
    ],
)
def test_invalid_terms_match_nothing_and_are_explained(runs: list[Run], query: str, message: str) -> None:
    result = run_list(query=f"{query} engine:megatron", page=None)
    assert result.rows == []
    assert [problem.term for problem in result.filter.problems] == [query]
    assert message in result.filter.problems[0].message
    assert experiment_list(query=query, page=None).rows == []


def test_a_term_without_its_value_yet_leaves_the_other_terms(runs: list[Run]) -> None:
    result = run_list(query="tag: engine:megatron", page=None)
    assert [line.run.number for line in result.rows] == [1]
    assert "The value is missing" in result.filter.problems[0].message


@pytest.mark.slow
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(query="\0")
@given(query=st.one_of(st.text(max_size=60), st.from_regex(r"[a-z_.]{1,12}[:<>=!]{1,2}[-\w.%,*\"]{0,12}")))
def test_no_filter_causes_an_error(experiment: Experiment, query: str) -> None:
    for show in (experiment_list, run_list):
        result: Any = show(query=query, page="x", sort=query)
        assert result.page.number == 1


OUT_OF_RANGE = ("1e999", "-1e308", "99999999999999999999", "0.0000001")


@pytest.mark.parametrize("value", ["1e308", *(pytest.param(value, marks=pytest.mark.slow) for value in OUT_OF_RANGE)])
def test_numbers_out_of_range_match_nothing_or_are_rejected(runs: list[Run], value: str) -> None:
    for name in [*filters.FIELDS, "model.num_layers"]:
        for operator in (":", ">", "<="):
            assert len(run_list(query=f"{name}{operator}{value}", page=None).rows) <= 3


def test_runs_without_a_value_are_sorted_last(runs: list[Run]) -> None:
    assert [line.run.number for line in run_list(query="", page=None, sort="-samples_per_s").rows] == [1, 2, 3]
    assert [line.run.number for line in run_list(query="", page=None, sort="samples_per_s").rows] == [2, 1, 3]
    assert run_list(query="", page=None, sort="-nonsense").sort == "-ended"

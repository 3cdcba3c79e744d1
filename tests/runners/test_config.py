"""The one definition of a configuration: what is refused says field, value and remedy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.config import (
    MAX_SWEEP_POINTS,
    ConfigError,
    RunConfig,
    check,
    difference,
    digest,
    expand,
    field_names,
    sections,
    with_values,
)


def messages(data: dict[str, Any]) -> list[str]:
    config, problems = check(data)
    assert (config is None) == bool(problems)
    return [str(problem) for problem in problems]


def test_an_empty_configuration_runs_with_defaults_and_resolves_every_field() -> None:
    config, problems = check({})
    assert problems == []
    assert config is not None
    assert config.resolved()["cluster"]["gpus_per_node"] == 1
    assert check(config.resolved())[1] == []


MEGATRON = {"engine": "megatron"}
INTERLEAVED = {"schedule": "interleaved-1f1b", "virtual_stages": 2, "pipeline_parallel_size": 2}


@pytest.mark.parametrize(
    ("data", "field", "message"),
    [
        (
            {"model": {"layers": 3}},
            "model.layers",
            "unknown field model.layers; did you mean model.num_layers? use",
        ),
        ({"modle": {}}, "modle", "unknown field modle; did you mean model? use one of autotuning"),
        ({"train": {"iterations": 0}}, "train.iterations", "invalid value 0 for train.iterations"),
        ({"train": {"learning_rate": float("nan")}}, "train.learning_rate", "for train.learning_rate"),
        (
            {"model": {"hidden_size": 30, "num_attention_heads": 4}},
            "model.num_attention_heads",
            "num_attention_heads 4 does not divide hidden_size 30; use 1, 2, 3, 5",
        ),
        (
            {"parallel": {"pipeline_parallel_size": 8}},
            "parallel.pipeline_parallel_size",
            "pipeline_parallel_size 8 is greater than num_layers 4; use at most 4 stages",
        ),
        (
            {"train": {"global_batch_size": 10, "micro_batch_size": 4}},
            "train.global_batch_size",
            "use a multiple of 4",
        ),
        (
            {"train": {"global_batch_size": 2}, "parallel": {"pipeline_parallel_size": 4}},
            "train.micro_batch_size",
            "1f1b requires at least as many micro batches as stages",
        ),
        ({"train": {"iterations": 2, "warmup_steps": 2}}, "train.warmup_steps", "use at most 1"),
        ({"profile": {"steps": [3, 5]}}, "profile.steps", "not consecutive; use steps in a row, like [3, 4]"),
        ({"profile": {"steps": [10, 11]}}, "profile.steps", "use steps up to train.iterations 10"),
        ({"profile": {"steps": [2], "ranks": [1]}}, "profile.ranks", "rank 1 does not exist; use ranks 0 to 0"),
        (
            {"parallel": {"engine": "allreduce"}, "profile": {"steps": [2]}},
            "profile.steps",
            "engine allreduce records no traces; use an empty list, or engine pipeline, megatron, zero",
        ),
        (
            {"launcher": {"kind": "plain"}, "parallel": {"pipeline_parallel_size": 2}},
            "launcher.kind",
            "the layout needs 2; use torchrun",
        ),
        (
            {"cluster": {"gpus_per_node": 3}, "parallel": {"pipeline_parallel_size": 2}},
            "cluster.gpus_per_node",
            "leave gpus_per_node empty, or make them equal",
        ),
        (
            {"model": {"attention_mask": "prefix"}},
            "model.prefix_length",
            "prefix_length 0 must leave a prefix and at least one token after it in 64 tokens; use 1 to 63",
        ),
        ({"model": {"prefix_length": 5}}, "model.prefix_length", "use 0, or attention_mask prefix"),
        (
            {"parallel": {"schedule": "gpipe", "warmup_slope": 2}},
            "parallel.warmup_slope",
            "warmup_slope 2 requires schedule 1f1b, not gpipe; use 1, or schedule 1f1b",
        ),
        (
            {"model": {"kind": "bert"}},
            "model.attention_mask",
            "bert needs attention_mask bidirectional, not causal; use bidirectional",
        ),
        ({"model": {"attention_mask": "bidirectional"}}, "model.attention_mask", "use causal or prefix, or kind bert"),
        (
            {"parallel": MEGATRON | {"tensor_parallel_size": 4}, "model": {"vocab_size": 1022}},
            "model.vocab_size",
            "tensor_parallel_size 4 does not divide vocab_size 1022; use 1024",
        ),
        ({"parallel": MEGATRON | {"sequence_parallel": True}}, "parallel.sequence_parallel", "use 2 or more, or false"),
        (
            {
                "parallel": MEGATRON | {"sequence_parallel": True, "tensor_parallel_size": 2},
                "model": {"sequence_length": 63},
            },
            "model.sequence_length",
            "does not divide sequence_length 63",
        ),
        ({"parallel": MEGATRON, "train": {"loss_scale": 8}}, "train.loss_scale", "leave it empty, or use fp16"),
        ({"model": {"attention_backend": "flex"}}, "model.attention_backend", "use sdpa, or attention_mask prefix"),
        (
            {"train": {"gradient_clipping": 1.0}},
            "train.gradient_clipping",
            "engine pipeline does not support gradient_clipping 1.0; use 0",
        ),
        ({"parallel": {"virtual_stages": 2}}, "parallel.virtual_stages", "use 1, or schedule interleaved-1f1b"),
        ({"parallel": INTERLEAVED | {"pipeline_parallel_size": 1}}, "parallel.schedule", "use 2 or more, or"),
        (
            {"parallel": INTERLEAVED | {"virtual_stages": 1}},
            "parallel.virtual_stages",
            "virtual_stages 1 cannot interleave 4 layers on 2 ranks; use 2 to 2",
        ),
        (
            {"parallel": INTERLEAVED, "model": {"num_layers": 3}},
            "parallel.virtual_stages",
            "cannot interleave 3 layers on 2 ranks; use at least 4 layers, or schedule 1f1b",
        ),
        (
            {"parallel": INTERLEAVED, "train": {"global_batch_size": 3}},
            "train.global_batch_size",
            "must be a multiple of pipeline_parallel_size 2, not 3",
        ),
        ({"train": {"precision": "fp16"}}, "train.precision", "use fp32 or bf16"),
    ],
)
def test_what_cannot_run_is_refused_with_field_and_remedy(data: dict[str, Any], field: str, message: str) -> None:
    _, problems = check(data)
    assert field in [problem.field for problem in problems]
    assert message in " ".join(problem.message for problem in problems)


def test_a_prefix_leaves_at_least_one_token_after_it() -> None:
    lengths = {"attention_mask": "prefix", "sequence_length": 64}
    assert messages({"model": {**lengths, "prefix_length": 63}}) == []
    assert "use 1 to 63" in messages({"model": {**lengths, "prefix_length": 64}})[0]


def test_all_contradictions_are_named_at_once() -> None:
    data = {"model": {"hidden_size": 30}, "train": {"global_batch_size": 3, "micro_batch_size": 2, "warmup_steps": 50}}
    assert len(messages(data)) == 3


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(section=st.sampled_from(list(sections())), field=st.text(max_size=8), value=json_values)
def test_no_value_whatever_raises_anything_but_problems(section: str, field: str, value: Any) -> None:
    for data in ({section: value}, {section: {field: value}}, {field: value}):
        config, problems = check(data)
        assert config is not None or problems


@given(name=st.sampled_from(field_names()), value=json_values)
def test_a_wrong_value_in_any_field_is_named(name: str, value: Any) -> None:
    config, problems = check(with_values({}, {name: value}))
    assert config is not None or all(problem.message for problem in problems)


def test_a_sweep_expands_in_the_order_of_its_axes_with_invalid_points_and_their_reasons() -> None:
    sweep = {"parallel.pipeline_parallel_size": [1, 8], "train.micro_batch_size": [1, 2]}
    points = expand({}, sweep)
    assert [tuple(point.values.values()) for point in points] == [(1, 1), (1, 2), (8, 1), (8, 2)]
    assert [point.config is None for point in points] == [False, False, True, True]
    assert "use at most 4 stages" in points[2].problems[0].message


def test_no_sweep_is_one_point() -> None:
    assert len(expand({}, {})) == 1


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"micro_batch_size": [1]}, "use train.micro_batch_size"),
        ({"train.nothing": [1]}, "unknown field train.nothing; use section.field"),
        ({"train.seed": []}, "requires a list of at least one value"),
        ({"train.seed": "12"}, "requires a list of at least one value"),
        ({"train.seed": [1, 2, 1]}, "contains 1 more than once"),
        ({"train.seed": list(range(MAX_SWEEP_POINTS + 1))}, "split it into several"),
        ([1, 2], "a sweep must map fields to lists"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_with_a_remedy(sweep: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand({}, sweep)


def test_repeats_count_as_runs_of_a_sweep() -> None:
    data, seeds = {"launcher": {"repeats": 100}}, list(range(MAX_SWEEP_POINTS // 100))
    assert len(expand(data, {"train.seed": seeds})) == len(seeds)
    with pytest.raises(ConfigError, match="repeats 100 of 21 points are more than 2000 runs; use 95 at most"):
        expand(data, {"train.seed": [*seeds, len(seeds)]})


def test_a_digest_depends_on_values_and_not_on_their_order() -> None:
    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


def test_a_difference_names_dotted_fields_with_both_values() -> None:
    old = {"train": {"seed": 1, "iterations": 5}, "gone": 1}
    new = {"train": {"seed": 2, "iterations": 5}, "came": 3}
    assert difference(old, new) == {"train.seed": (1, 2), "gone": (1, None), "came": (None, 3)}


def test_setting_values_leaves_the_original_alone() -> None:
    data: dict[str, Any] = {"train": {"seed": 1}}
    assert with_values(data, {"train.seed": 2, "model.num_layers": 8}) == {
        "train": {"seed": 2},
        "model": {"num_layers": 8},
    }
    assert data == {"train": {"seed": 1}}


def test_ranks_and_micro_batches_follow_from_the_layout() -> None:
    config = RunConfig.model_validate(
        {"train": {"global_batch_size": 12, "micro_batch_size": 3}, "parallel": {"pipeline_parallel_size": 4}}
    )
    assert (config.world_size, config.num_micro_batches, config.gpus_per_node) == (4, 4, 4)


def test_every_field_has_a_description_for_people() -> None:
    for name, section in sections().items():
        for field, info in section.model_fields.items():
            assert info.description, f"{name}.{field}"

"""The tuner on a search space measured on this machine, and replayed on published measurements."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import median, stdev
from typing import Any

import psutil

from parlab.planner import cluster
from parlab.planner.prediction.prediction import predict_job
from parlab.planner.publications import published, rows
from parlab.tuner.planning import NodePlanner
from parlab.tuner.space import Candidate, Observation, Past, Space
from parlab.tuner.spaces import candidate, features_of_job, setting_name
from parlab.tuner.strategies import STRATEGIES, replay
from runners.config import Point, expand
from tests.bench.ranks import on_ranks
from tests.bench.result import Result, Scale, Unavailable
from tests.bench.zero import steps_s

VALIDATION = Path(__file__).resolve().parents[4] / "shared" / "validation" / "vtrain_single.json"
MODEL = {
    "kind": "bert",
    "attention_mask": "bidirectional",
    "num_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "sequence_length": 32,
    "vocab_size": 8192,
}
"""BERT-mini's width and depth (Turc et al. 2019), on short sequences of a small vocabulary."""
RANKS = 2
SIZES, ACCUMULATIONS = (1, 2, 4), (1, 2)
WARMUP, STEPS = 1, 3


def real_points(scale: Scale) -> list[Point]:
    """Return 24 settings: ZeRO 0 to 3, three micro batches, two accumulations."""
    sizes, stages = (SIZES[:1], [0]) if scale.is_quick else (SIZES, [0, 1, 2, 3])
    data = {
        "model": MODEL | ({"num_layers": 1, "hidden_size": 64} if scale.is_quick else {}),
        "train": {"iterations": WARMUP + (2 if scale.is_quick else STEPS), "warmup_steps": WARMUP},
        "parallel": {"engine": "zero", "data_parallel_size": RANKS},
        "cluster": {"device": "cpu"},
    }
    pairs = [[size, size * count * RANKS] for size in sizes for count in ACCUMULATIONS]
    return expand(data, {"parallel.zero_stage": stages, "train.micro_batch_size, train.global_batch_size": pairs})


def _observed(key: str, times: Sequence[float]) -> Observation:
    middle = median(times)
    return Observation(key, "finished", middle, 1.2533 * stdev(times) / math.sqrt(len(times)) / middle)


@cache
def real_space(scale: Scale) -> tuple[Space, Mapping[str, Observation]]:
    """Return the search space with predictions, and a measurement of every setting."""
    planner = NodePlanner({"cpu_cores": os.cpu_count(), "memory_bytes": psutil.virtual_memory().total})
    candidates, configs = [], {}
    for point in real_points(scale):
        assert point.config is not None
        key = setting_name(point.config)
        configs[key] = point.config
        candidates.append(candidate(key, point, point.config, planner.plan(point.config)))
    times = on_ranks(partial(steps_s, list(configs.values())), RANKS)
    measured = {key: _observed(key, own) for key, own in zip(configs, times, strict=True)}
    for key, config in configs.items():
        sys.stderr.write(f"{key}: {config.train.global_batch_size / (measured[key].step_time_s or 1):.1f} samples/s\n")
    return Space(candidates), measured


def _course(scale: Scale, name: str) -> tuple[int, int, float]:
    """Return the launches until within 1 % of the best (or all), all launches, and the final regret in percent."""
    space, measured = real_space(scale)
    done, _ = replay(STRATEGIES[name], space, measured)
    best = space.best(list(measured.values()))
    top = space.score(best) if best else None
    assert top
    values = [space.score(observation) or 0.0 for observation in done]
    until = next((i + 1 for i, value in enumerate(values) if value >= 0.99 * top), len(values))
    return until, len(done), 100 * (1 - max(values) / top)


def planned_launches(scale: Scale) -> Result:
    """Count the launches of strategy `planned` until within 1 % of the best, against DeepSpeed's order."""
    until, total, regret = _course(scale, "planned")
    theirs, theirs_total, theirs_regret = _course(scale, "deepspeed")
    against = f"stopped after {total}, {regret:.1f} % off; DeepSpeed's order {theirs_total}, {theirs_regret:.1f} % off"
    return Result(until, against, 1, theirs / until)


def regret_pct(scale: Scale) -> Result:
    """Measure by how much the result of strategy `planned` is below the best setting, in percent."""
    _, total, regret = _course(scale, "planned")
    _, _, theirs = _course(scale, "deepspeed")
    settings = len(real_space(scale)[0].candidates)
    return Result(regret, f"{total} of {settings} settings launched; DeepSpeed's order {theirs:.1f} %", 1)


def replay_share(scale: Scale) -> Result:
    """Measure the share of published workloads whose best is found to within 1 % in at most five measurements.

    Each group of settings of one model, batch and number of GPUs is searched with the measurements of all other groups.
    """
    if not VALIDATION.exists():
        raise Unavailable(f"the published measurements are missing; expected in {VALIDATION}")
    groups = _published(VALIDATION)
    if scale.is_quick:
        groups = {name: groups[name] for name in sorted(groups)[::20]}
    names = sorted(groups)
    good, launches = 0, []
    for name in names:
        others = [past for other, members in groups.items() if other != name for _, past, _ in members]
        group = groups[name]
        space = Space([setting for setting, _, _ in group], past=others)
        measured = {setting.key: observation for setting, _, observation in group}
        done, _ = replay(STRATEGIES["planned"], space, measured)
        best = min(observation.step_time_s or math.inf for observation in measured.values())
        good += min(observation.step_time_s or math.inf for observation in done[:5]) <= 1.01 * best
        launches.append(len(done))
    count = len(names)
    against = f"{count} groups of at least two settings, {median(launches):g} launches each"
    return Result(100 * good / count, against, count)


_Member = tuple[Candidate, Past, Observation]


def _published(path: Path) -> Mapping[tuple[Any, ...], Sequence[_Member]]:
    """Return the settings of the published rows by workload: candidate, past experience for others, measurement."""
    groups: dict[tuple[Any, ...], list[_Member]] = {}
    for key, member in _members(path):
        groups.setdefault(key, []).append(member)
    return {key: members for key, members in groups.items() if len(members) > 1}


def _members(path: Path) -> Iterator[tuple[tuple[Any, ...], _Member]]:
    for raw in published.load(path.read_text()):
        row = rows.read(raw)
        job, seconds = row.job, float(raw["measured"]["iter_s"])
        planned = predict_job(job, cluster("A100", job.world_size, 8)).iteration_s
        described = features_of_job(job)
        setting = Candidate(
            str(raw["id"]), job.global_batch_size, job.world_size, features=described, predicted_s=planned
        )
        observation = Observation(str(raw["id"]), "finished", seconds, 0.005)
        workload = (job.model.num_layers, job.model.hidden_size, job.global_batch_size, job.world_size)
        yield workload, (setting, Past(described, planned / seconds), observation)

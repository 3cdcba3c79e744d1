"""The waterfall of a prediction, in the same terms as that of a measured step."""

from __future__ import annotations

from dataclasses import replace

from parlab.planner import Prediction, predict_job
from parlab.planner.calibration.calibration import Calibration
from parlab.planner.prediction.job_flops import flops_of
from parlab.planner.prediction.layer import ceiling

from .measured import planned_rows
from .terms import flops_text
from .traced import Row
from .waterfall import Waterfall, assembled


def predicted_waterfall(prediction: Prediction, calibration: Calibration | None = None) -> Waterfall:
    """Split a prediction. `calibration` is the one that it was made with."""
    job, cluster, parts = prediction.job, prediction.cluster, prediction.parts
    needed, _ = flops_of(job)
    rows: list[Row] = []
    left_s = parts.compute_s
    peak = cluster.device.peak(job.precision)
    reachable = ceiling(cluster, job.precision)
    if peak is not None:
        ideal_s = min(left_s, needed / (job.world_size * peak.flops_per_s))
        rows.append(("ideal", ideal_s, "computed", f"{flops_text(peak.flops_per_s)}: {peak.source}"))
        left_s -= ideal_s
        slower_s = min(left_s, max(0.0, needed / (job.world_size * reachable) - ideal_s))
        if slower_s:
            rows.append(("matrix_rate", slower_s, "computed", f"{flops_text(reachable)}"))
            left_s -= slower_s
    if job.recompute != "none":
        without = predict_job(replace(job, recompute="none"), cluster, calibration).parts.compute_s
        repeated_s = min(left_s, max(0.0, parts.compute_s - without))
        rows.append(("recompute", repeated_s, "computed", "compute with - without recomputation"))
        left_s -= repeated_s
    rows.append(("kernels" if peak else "compute", left_s, "computed", "rest of the compute"))
    rows += planned_rows(parts)
    return assembled("Predicted", prediction.iteration_s, rows, {}, (prediction.basis,))

"""Trainers of images and of large models with lines of their own, or with numbers that have no key.

Sources: torchvision/references, DETR (MetricLogger); pytorch/examples/imagenet; timm/train.py; open_clip/training;
detectron2 and LiBai (utils/events); MMCV and MMEngine (LoggerHook); OLMo, Lingua/train.py; litgpt/pretrain.py;
neuronx-distributed (tp_zero1); PaddleNLP/trainer and GPT; MindFormers and MindSpore (callbacks); Keras (Progbar);
TensorFlow's Estimator; tf_cnn_benchmarks; horovod/examples (synthetic benchmark); modded-nanogpt; OpenNMT; Marian;
XTuner V1; AReaL (StatsLogger); tinker_cookbook (ml_log); torchtitan/components/metrics.py and train.py, v0.1 to 2026;
nanotron/logging (LogItem, human_format) and trainer.py, 2023 to 2025; nemo/lightning/pytorch/callbacks
(ProgressPrinter).
"""

from __future__ import annotations

import re

from parlab.formats.grammar import wrapping
from parlab.formats.grammar.steplines import Dialect
from parlab.formats.logs import launch_lines

_BATCH = r"(?i:batch|step|iter(?:ation)?)"

VISION: dict[str, Dialect] = {
    "detectron2": Dialect(
        (
            (re.compile(r"\b(?:d2|detectron2|lb|libai)\.utils\.events\]?:"), 12),
            (re.compile(r"\beta: .{4,40} iter(?:ation)?: \d+(?:/\d+)?\s.*\btime: [\d.]+"), 6),
        ),
        reads="detectron2 and LiBai",
    ),
    "openmmlab": Dialect(
        (
            (re.compile(r"- INFO - (?:Epoch|Iter)(?:\((?:train|val)\))? +\["), 12),
        ),
        reads="MMCV and MMEngine",
    ),
    "torchvision": Dialect(
        (
            (re.compile(r"\beta: [\d:days, ]{4,30} .{0,400}\btime: [\d.]+ .{0,60}\bdata: [\d.]+"), 12),
        ),
        reads="torchvision's references and DETR",
        # A rank divides its own batch by the time.
    ),
    "imagenet": Dialect(
        (
            (re.compile(r"^Epoch: \[\d+\]\[ *\d+/\d+\]\s+Time "), 12),
        ),
        reads="PyTorch's ImageNet example",
        rewritten=((re.compile(r"\t"), " | "),),
    ),
    "timm": Dialect(
        (
            (re.compile(r"\bTrain: \d+ \[ *\d+/\d+ \(.{0,80}\bTime: [\d.]+s, "), 12),
        ),
        reads="timm",
        rewritten=(
            (re.compile(r"(Time: [\d.]{1,12}s),\s{1,9}([\d.]{1,12})/s\s{1,4}\([^()]{1,60}\)"), r"\1, samples/s: \2"),
        ),
    ),
    "open-clip": Dialect(
        (
            (re.compile(r"\bTrain Epoch: \d+ \[ *\d+/\d+ \(.{0,40}\bBatch \(t\): "), 12),
        ),
        reads="OpenCLIP",
        rewritten=(
            (re.compile(r"Train Epoch: (\d{1,9}) \[\s{0,15}(\d{1,15})/\d{1,15} \([^()]{1,12}\)\]"),
             r"epoch: \1 consumed_samples: \2 "),
            (re.compile(r", ([\d.]{1,12})/s, ([\d.]{1,12})/s/gpu"), r", samples/s: \1, samples/s/gpu: \2"),
        ),
        uncounted=re.compile(r"Batch \(t\): "),
    ),
    "keras": Dialect(
        (
            (re.compile(r"^\s*\d+/\d+ \[[=>.]{5,60}\] - "), 6),
            (re.compile(r"^\s*\d+/\d+ ━{5,60} "), 6),
        ),
        reads="Keras: bars",
        rewritten=(
            (re.compile(r"(?<=[\]━] - )(\d{1,9})s (?=\d)|(?<=━ )(\d{1,9})s (?=\d)"), r"elapsed: \1\2s "),
            (re.compile(r" - ETA: \S{1,20}(?= -|$)"), ""),
        ),
    ),
    "tf-cnn": Dialect(
        (
            (re.compile(r"^\d+\timages/sec: [\d.]+ \+/- "), 12),
        ),
        reads="tf_cnn_benchmarks",
        settings={"global batch size": "global_batch_size"},
        rewritten=(
            (re.compile(r"^(\d{1,12})\timages/sec: ([\d.]{1,15}) \+/- [^\t]{1,20} \(jitter = ([\d.]{1,15})\)\t"
                        r"([^\t]{1,20})"),
             r"step \1 | images/sec: \2 | jitter: \3 | loss: \4"),
            (re.compile(r"^Batch size:\s{1,9}(\d{1,12}) global"), r"global batch size: \1"),
        ),
    ),
    "horovod": Dialect(
        (
            (re.compile(r"^Iter #\d+: [\d.]+ img/sec per "), 12),
            (re.compile(r"^(?:Img/sec per \w+|Total img/sec on \d+ \w+(?:\(s\))?): [\d.]+ \+-"), 12),
        ),
        reads="Horovod's synthetic benchmark",
        settings={"Number of GPUs": "world_size", "Batch size": "micro_batch_size"},
        rewritten=((re.compile(r"Total img/sec on \d{1,9} [^:]{1,20}: ([\d.]{1,15}) \+-"), r"Total img/sec: \1 +-"),),
    ),
}  # fmt: skip

FRAMEWORKS: dict[str, Dialect] = {
    "torchtitan": Dialect(
        (
            (re.compile(r"\bstep:\s{0,8}\d+\s{1,8}loss:\s{0,8}\S+\s.{0,120}\b(?:tps|wps|memory):"), 10),
            (re.compile(r"\[titan\]"), 4),
            (re.compile(r"root - INFO - (?:Training starts at step|Building device mesh|Peak FLOPS used for)"), 6),
        ),
        reads="torchtitan: `step: 1 loss: 12.25 memory: 30.50GiB(38.53%) tps: 1,024 mfu: 5.00%`, of one rank or each",
        # `tps`, `wps` until late 2024, counts tokens of one device; `memory` is the largest reserved one since the
        # last line, with its share of the device.
        rewritten=(
            (re.compile(r"\bmemory:\s{0,8}([\d.]{1,20}(?:[eE]\d{1,3})?GiB)\(([\d.]{1,12}%)\)"),
             r"memory: \1 | memory_share: \2 | "),
        ),
        held_out=re.compile(r"\bvalidate\s{1,4}step:\s{0,8}(?P<at>\d{1,18})\s"),
        launch=launch_lines.torchtitan,
    ),
    "nanotron": Dialect(
        (
            (re.compile(r"\|DP=\d+\|PP=\d+\|TP=\d+[^\]]{0,80}\]: +iteration: \d+ */ *\d+ *\|"), 10),
            (re.compile(r"\[[A-Z]+\|DP=\d+\|PP=\d+\|TP=\d+"), 4),
            (re.compile(r"\belapsed_time_per_iteration_ms: \S+ \|"), 6),
        ),
        reads="nanotron: `iteration: 991 / 1000 | elapsed_time_per_iteration_ms: 4.71K |`",
        # Three digits and a decimal suffix, also where the key names a unit: 4.71K ms. The coordinates in the tag do
        # not give the number of a rank.
        rewritten=(
            (launch_lines.NANOTRON_TAG, " | "),
            (re.compile(r"\b(Memory usage|Peak allocated|Peak reserved):? ([\d.]{1,20}[KMG]i?B)\.?"), r"| \1: \2 "),
        ),
        launch=launch_lines.nanotron,
        is_of_rank=True,
    ),
    "nemo": Dialect(
        (
            (re.compile(r"\bTraining epoch \d+, iteration \d+/\d+ \|"), 10),
            (re.compile(r"\btrain_step_timing in s[=:]"), 6),
            (re.compile(r"\breduced_train_loss[=:]"), 4),
            (re.compile(r"\[NeMo [IWE] \d{4}-"), 4),
        ),
        reads="NeMo 2.0 progress lines and NeMo 1.0 progress bars",
        rewritten=((re.compile(r"^\[NeMo [A-Z] [^\]]{1,120}\]"), ""),),
        # M of `iteration N/M` is the last one, and N restarts with each epoch, beside `global_step`.
        counts_to_total=True,
        wrapped=wrapping.NEMO,
    ),
    "xtuner": Dialect(
        (
            (re.compile(r"\[XTuner\]\[RANK \d+\].{0,60}\bStep \d+/\d+ "), 12),
        ),
        reads="XTuner V1: boxes of names and numbers below the number of a step",
        rewritten=((re.compile(r"^\[XTuner\]\[RANK (\d{1,7})\](?:\[[^\]]{1,40}\]){1,3} "), r"[rank \1] "),),
    ),
    "areal": Dialect(
        (
            (re.compile(r"\bStatsLogger INFO: Epoch \d+/\d+ Step \d+/\d+ Train step \d+"), 12),
        ),
        reads="AReaL's StatsLogger: boxes below the number of a step",
        seconds=re.compile(r"^timeperf/\w"),
        has_blocks=True,
    ),
    "tinker": Dialect(
        (
            (re.compile(r"\btinker_cookbook\.\w"), 12),
            (re.compile(r"^[│|] (?:progress/(?:batch|done_frac)|time/total) +[│|]"), 12),
        ),
        reads="tinker_cookbook: boxes below the number of a step",
        seconds=re.compile(r"^time/\w"),
        has_blocks=True,
    ),
    "olmo": Dialect(
        (
            (re.compile(r"\[step=[\d,]+/[\d,]+(?:,epoch=[\d/]+)?(?:,eta=[^\]]{1,40})?\]\s*$"), 12),
            (re.compile(r"^\s{2,8}throughput/device/(?:BPS|TPS|MFU)\b.{0,20}=[\d.,]+$"), 6),
        ),
        reads="OLMo and OLMo-core",
        has_blocks=True,
        has_tags=True,
    ),
    "ranklines": Dialect(
        (
            (re.compile(rf"(?i:\bepoch)\W{{0,3}}\d+\W{{1,4}}{_BATCH}\W{{0,3}}\d+\D.{{0,80}}"
                        r":\s{0,4}[\d.]+\s?[mun]?s\b"), 6),
        ),
        keeps_names=True,
        reads="custom trainers: `[Epoch 0, Batch 6] Data: 2.6ms | Forward: 237.0ms | Total: 1302.5ms |`",
        counter=re.compile(
            rf"\[?(?i:\bepoch)[\s:=\[]{{0,3}}(?P<epoch>\d{{1,9}})(?:/\d{{1,9}})?[\s,;\]\[|]{{1,4}}{_BATCH}[\s:=\[]{{0,3}}"
            r"(?P<at>\d{1,15})(?:/(?P<total>\d{1,15}))?\s?[\]):,|]{0,3}"
        ),
    ),
    "pipeline-runner": Dialect(
        (
            (re.compile(r"Finished running\s+\d+\s+iterations, (?:averaged|run time)"), 10),
            (re.compile(r"^\s*Rank \d+ node .{1,60} takes [\d.]+s"), 10),
        ),
        reads="The pipeline runner of the 3-node case (dist_pipeline_runner.py of DeDLOC's successors)",
        # The order of a rank's lines gives its iterations; the average at the end leaves out the first.
        rewritten=(
            (re.compile(r"Rank (\d{1,7}) node (?:[\w.-]{0,60}\d[\w.-]{0,60} )?(.{1,60}?)(?: pass| step)? takes"
                        r" (\S{1,30}?)s(?=\s*$)"),
             r"[rank \1] \2: \3 s"),
            (re.compile(r"Finished running\s+(\d{1,18})\s+iterations, averaged[^:]{0,80}: ?(?=\S)"),
             r"stated iterations: \1, stated mean step time (s): "),
            (re.compile(r"Finished running\s+(\d{1,18})\s+iterations, run time[^:]{0,20}: ?(?=\S)"),
             r"stated iterations: \1, step time (s): "),
        ),
        start=re.compile(r"Rank \d{1,7} node "),
        uncounted=re.compile(r"^\W{0,4}[A-Za-z][\w ]{0,60}: \S{1,30} s$"),
        turn="forward",
        last=re.compile(r"\s*Finished running\s+\d{1,18}\s+iterations, "),
    ),
    "maxtext": Dialect(
        (
            (re.compile(r"\bcompleted step: \d+, seconds: "), 10),
            (re.compile(r"\b(?:eval metrics after step|average loss after step)\b:? \d+"), 6),
        ),
        reads="MaxText",
        rewritten=(
            (re.compile(r"\bUsing \(GB\) ([\d.]{1,20}) / [\d.]{1,20} \([^()]{1,20}\) on [A-Za-z]{2,8}_(\d{1,7}).*"),
             r"[rank \2] Using (GB): \1"),
        ),
        held_out=re.compile(r"\b(?:eval metrics after step|average loss after step):? (?P<at>\d{1,18})\s?[:,]"),
    ),
    "prime-rl": Dialect(
        (
            (re.compile(r"\bStep \d+ \| Time: [\d.]+s \| (?:Loss|Reward): "), 12),
        ),
        reads="prime-rl's trainer and orchestrator",
    ),
    "automodel": Dialect(
        (
            (re.compile(r"\| tps [\d.,]+\([\d.,]+/gpu\)"), 12),
        ),
        reads="NeMo Automodel",
        rewritten=((re.compile(r"\btps ([\d.,]{1,20})\(([\d.,]{1,20})/gpu\)"), r"tok/s: \1 | tok/s/gpu: \2"),),
    ),
    "espnet": Dialect(
        (
            (re.compile(r"\b\d+epoch:train:\d+-\d+batch: iter_time="), 12),
        ),
        reads="ESPnet",
        # `iter_time` is the time of the iterator, which loads the data.
        seconds=re.compile(r"^(?:forward|backward|optim_step)_time$"),
        rewritten=(
            (re.compile(r"\b(\d{1,9})epoch:train:\d{1,15}-(\d{1,15})batch:"), r"epoch: \1 step: \2 "),
        ),
    ),
    "lingua": Dialect(
        (
            (re.compile(r"\bstep: \d+ +acc: \d+ +loss: .{0,80}\bflops: \S+ +wps: "), 12),
        ),
        reads="Lingua",
        # Both count the words of one GPU.
    ),
    "litgpt": Dialect(
        (
            (re.compile(r"\biter \d+ step \d+(?: \||:) loss.{0,60}\biter time: [\d.]+ ?ms"), 20),
        ),
        reads="LitGPT and TinyLlama",
        rewritten=((re.compile(r"(?<=, )val: (?=[\d.])"), "val_loss: "),
                   (re.compile(r"(?<=\d) step (\d{1,18})(?= \||:)"), r" | optimizer_step: \1 |")),
    ),
    "neuronx": Dialect(
        (
            (re.compile(r"^LOG .{10,40} - \(\d+, \d+\) step_loss : "), 12),
        ),
        reads="neuronx-distributed",
        rewritten=((re.compile(r"\((\d{1,9}), (\d{1,15})\) (?=step_loss)"), r"step \2 "),),
    ),
    "paddle": Dialect(
        (
            (re.compile(r"\binterval_samples_per_second: "), 12),
            (re.compile(r"\bips_total: [\d.]+ tokens/s, ips: "), 12),
            (re.compile(r"\bbatch_cost: [\d.]+, reader_cost: [\d.]+"), 12),
            (re.compile(r"\bavg_reader_cost: [\d.]+ s, avg_batch_cost: [\d.]+ s, avg_samples: "), 12),
        ),
        reads="PaddleNLP: trainer and GPT",
        # The trainer of PaddleNLP divides sizes by 2**30; `interval_runtime` is the time since the last line.
    ),
    "recbole": Dialect(
        (
            (re.compile(r"\bepoch \d+ training \[time: [\d.]+s, train loss"), 12),
        ),
        reads="RecBole",
        rewritten=(
            (re.compile(r"\bepoch (\d{1,9}) (training|evaluating) \[time: ([\d.]{1,12})s(?:, train)?"),
             r"iteration \1 | epoch \2: \3 s"),
        ),
    ),
    "mindformers": Dialect(
        (
            (re.compile(r"\bmindformers\[|\bper_step_time: \d+ ?ms"), 12),
            (re.compile(r"^epoch: ?\d+,? step: ?\d+, loss is [\d.]+"), 10),
        ),
        reads="MindFormers and MindSpore",
        rewritten=((re.compile(r"samples/s/p\b"), "samples/s/npu"),),
    ),
    "estimator": Dialect(
        (
            (re.compile(r"\bloss = [\d.e+-]+, step = \d+ \([\d.]+ sec\)"), 12),
            (re.compile(r"\bglobal_step/sec: [\d.]+"), 6),
        ),
        reads="TensorFlow's Estimator",
        rewritten=((re.compile(r"step = (\d{1,15}) \(([\d.]{1,15}) sec\)"), r"step = \1, elapsed since last: \2 s"),),
    ),
    "modded-nanogpt": Dialect(
        (
            (re.compile(r"^step:\d+/\d+ (?:val_loss:[\d.]+ |train_loss:[\d.]+ )?train_time:"), 12),
        ),
        reads="modded-nanogpt",
    ),
    "opennmt": Dialect(
        (
            (re.compile(r"\bStep \d+/\d+; acc: .{0,200}\d+/\d+ tok/s;"), 12),
        ),
        reads="OpenNMT-py",
        rewritten=(
            (re.compile(r"(\d{1,12})/\s?(\d{1,12}) tok/s;\s{0,9}(\d{1,12}) sec"),
             r"source rate: \1; target rate: \2; elapsed: \3 sec"),
            (re.compile(r"\bbsz: (\d{1,12})/\s?(\d{1,12})/\s?(\d{1,12});"),
             r"source tokens: \1; target tokens: \2; sentences: \3;"),
        ),
    ),
    "marian": Dialect(
        (
            (re.compile(r"\bEp\. \d+ : Up\. \d+ : Sen\. "), 12),
        ),
        reads="Marian",
        rewritten=(
            (re.compile(r"\bSen\. (?=\d)"), "consumed_samples "),
            (re.compile(r"(?<=\d) : ([\w-]{1,40}) : (?=[\d.]+ : (?:new best|stalled))"), r" | \1: "),
            (re.compile(r" : "), " | "), (re.compile(r"(?<=Cost )([\d.]{1,15}) \* [^|]{1,80}"), r"\1 "),
        ),
        held_out=re.compile(r"\[valid\] .{0,60}?\bUp\. (?P<at>\d{1,18}) \|"),
    ),
}  # fmt: skip

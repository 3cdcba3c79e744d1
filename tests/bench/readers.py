"""Reading 1 MB of each format of logs to records, against parsing JSON lines on the same machine."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from parlab.formats import records
from parlab.formats.documents.blocks import MAX_DOCUMENT
from parlab.formats.documents.rst import MAX_RST
from parlab.formats.grammar.records import Record
from parlab.formats.learnt import learnt
from tests.bench.formats import _block
from tests.bench.reader_lines import MORE_LINES
from tests.bench.result import Result, Scale

MEGABYTES = 1
_STAMP = "2026-01-02 10:00:{0:02d},123"

# Format -> lines of step {n}; {s} are seconds, {r} a rate, {l} a loss and {p} the place of the step in 100.
LINES: dict[str, str] = {
    "deepspeed": "[2026-01-02 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=3,"
    " lr=[{l}e-05], mom=[[0.9, 0.95]]\n"
    "[2026-01-02 10:00:00,125] [INFO] [timer.py:215:stop] epoch=0/micro_step={n}/global_step={n},"
    " RunningAvgSamplesPerSec={r}, CurrSamplesPerSec={r}, MemAllocated=5.25GB, MaxMemAllocated=18.5GB\n"
    "[2026-01-02 10:00:00,126] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) | fwd_microstep: {s}"
    " | bwd_microstep: {r} | bwd_inner_microstep: {s} | bwd_allreduce_microstep: 0.12 | step_microstep: {s}\n",
    "pipeline-runner": "Rank 0 node 10.0.0.1 forward pass takes {s}s\nRank 0 node 10.0.0.1 backward pass takes {s}s\n"
    "Rank 0 node 10.0.0.1 iteration takes {s}s\n",
    "torchtitan": "[rank0]:[titan] 2026-01-02 10:00:00,123 - root - INFO - step: {n:5d}  loss: {l}  grad_norm: {s}"
    "  memory: 41.25GiB(43.42%)  tps: {r}  tflops: {s}  mfu: 45.67%\n",
    "nanotron": "01/02/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: {n} / 1000000 | consumed_tokens: 4.71M |"
    " elapsed_time_per_iteration_ms: {s} | tokens_per_sec: {s}K | tokens_per_sec_per_gpu: {s}K |"
    " global_batch_size: 1.02K | lm_loss: {l} | lr: 0.0001 | model_tflops_per_gpu: {s} | grad_norm: 1.25\n",
    "nemo": "Training epoch 0, iteration {n}/1000000 | lr: 2.7e-06 | global_batch_size: 512 | global_step: {n} |"
    " reduced_train_loss: {l} | train_step_timing in s: {s} | consumed_samples: {n} | val_loss: 9.5\n",
    "maxtext": "completed step: {n}, seconds: {s}, TFLOP/s/device: {r}, Tokens/s/device: {r}, total_weights: 524288,"
    " loss: {l}\n",
    "ranklines": "[Epoch 0, Batch {n}] Data: 2.6ms | Forward: {s}ms | Backward: {s}ms | Optimizer: {s}ms |"
    " Total: {s}ms | Loss: {l}\n",
    "nccl-tests": " {n:10d}  {n:10d}     float     sum      -1    {s}   {s}   {s}      0    {s}   {s}   {s}      0\n",
    "all-reduce-bench": "{p}:\n duration: {s} sec\n algo throughput: 8000000000.0 bps, {r} Gbps\n busbw: {r}  Gbps\n",
    "nvidia-smi": "    0   {p}    40    55    {p}    20     0     0     0     0  1593  1410  {n}  2\n",
    "dcgm-exporter": 'DCGM_FI_DEV_GPU_UTIL{{gpu="0",device="nvidia0",modelName="NVIDIA H100",Hostname="gpu1"}} {p}\n'
    'DCGM_FI_DEV_POWER_USAGE{{gpu="0",device="nvidia0",modelName="NVIDIA H100",Hostname="gpu1"}} {r}\n',
    "mlperf": ':::MLLOG {{"namespace": "", "time_ms": 1700000000000, "event_type": "POINT_IN_TIME", "key":'
    ' "tracked_stats", "value": {{"train_step_time": {s}, "reduced_train_loss": {l}}}, "metadata": {{"file":'
    ' "/workspace/mlperf_logger.py", "lineno": 123, "step": {n}}}}}\n',
    "huggingface": "{{'loss': {e}, 'grad_norm': {e}, 'learning_rate': 4.97e-05, 'num_tokens': {n}.0,"
    " 'mean_token_accuracy': 0.7125, 'epoch': {e}}}\n",
    "serving": "Request throughput (req/s):              {s}\nOutput token throughput (tok/s):         {r}\n"
    "Mean TTFT (ms):                          {s}\nP99 TPOT (ms):                           {s}\n",
    "tensorboard-json": "[1700000000.123456, {n}, {l}], ",
    "wandb-runs": '"run-{n}","finished","-","ada","2025-03-02T10:11:12.000Z","{n}","512","8","0.0003","{r}","{l}"\n',
    "colossalai": "Step:  {p}%|####      | {n}/1000000 [01:00<10:00:00,  {s}s/it]\n"
    "Throughput: {r} samples/sec, TFLOPS per GPU by Megatron: {s}, TFLOPS per GPU: {s}\n",
    "prime-rl": "10:00:00 SUCCESS Step {n} | Time: {s}s | Loss: {l} | Entropy: 0.3123 | Mismatch KL: 0.0012 |"
    " Grad. Norm: 0.1231 | LR: 1.00e-06 | Throughput: {r} tokens/s | MFU: 31.2% | Peak Mem.: 61.2 GiB\n",
    "espnet": "[node1] 2026-01-02 10:00:00,111 (trainer:756) INFO: 1epoch:train:{n}-{n}batch: iter_time=0.002,"
    " forward_time={s}, loss_ctc=80.1, loss={l}, backward_time={s}, grad_norm=45.1, train_time={s}\n",
    "automodel": "2026-01-02 10:00:00 | INFO | nemo_automodel.recipes.llm.train_ft | step {n} | epoch 0 | loss {l} |"
    " grad_norm 0.4123 | lr 1.00e-05 | mem 34.21 GiB | tps {r}({r}/gpu) | num_label_tokens 8123\n",
    "csv": "{n},{n}.25,{l},{s},{r},,{s}\n",
    "jsonl": '{{"_step": {n}, "_runtime": {n}.25, "train/loss": {l}, "grad_norm": {s}, "perf/tokens_per_sec": {r}}}\n',
    "nanogpt": "step {n:05d}/1000000 (0.01%) | loss: {l} | grad norm: {s} | lrm: 1.00 | dt: {s}ms | tok/sec: {r} |"
    " mfu: 45.67 | total time: {s}m\n",
    "torchtune": "Step {n} | loss:{l} lr:2e-05 tokens_per_second_per_gpu:{r} peak_memory_active:{s}"
    " peak_memory_alloc:{s} peak_memory_reserved:{s}\n",
    "internlm": "2026-01-02 10:00:00,123\tINFO train.py:318 in record_current_batch_training_metrics -- tflops={r},"
    "step={n},loss={l},tgs (tokens/gpu/second)={r},lr=9.779e-07,loss_scale=65536.0,grad_norm={s},micro_num=4,"
    "num_consumed_tokens={n},inf_nan_skip_batches=0,num_samples_in_batch=17,largest_length=2048,"
    "largest_batch=7,smallest_batch=3,adam_beta2=0.95,fwd_bwd_time={s}\n",
    "verl": "(main_task pid=1234) step:{n} - global_seqlen/min:4128.000 - actor/entropy_loss:{l} - actor/pg_loss:{l}"
    " - actor/grad_norm:{s} - actor/lr:0.000 - perf/mfu/actor:0.412 - timing_s/gen:{s} - timing_s/old_log_prob:{s}"
    " - timing_s/update_actor:{s} - timing_s/step:{s} - perf/throughput:{r}\n",
    "fairseq": "2026-01-02 10:00:00 | INFO | train_inner | epoch 001:   {n} / 1000000 loss={l}, nll_loss={l},"
    " ppl={s}, wps={r}, ups={s}, wpb=25000, bsz=256, num_updates={n}, lr=5e-05, gnorm={s}, train_wall=45,"
    " gb_free=12.5, wall=120\n",
    "mlx-lm": "Iter {n}: Train loss {l}, Learning Rate 1.000e-05, It/sec {s}, Tokens/sec {r}, Trained Tokens {n},"
    " Peak mem 12.345 GB\n",
    "composer": "[batch={n}/1000000]:\n\t Train time/epoch: 0\n\t Train throughput/batches_per_sec: {s}\n"
    "\t Train throughput/device/tokens_per_sec: {r}\n\t Train loss/train/total: {l}\n"
    "\t Train memory/peak_allocated_mem: {s}\n",
    "bars": "Epoch 0:  {p}%|####      | {n}/1000000 [01:00<10:00:00, {s}it/s, v_num=1, train_loss={l}]\n",
    "pairs": "global step {n} => time/step: {s} s, throughput: {r} samples/s, loss={l}\n",
    **MORE_LINES,
}  # fmt: skip
_HEADS = {
    "nvidia-smi": "# gpu   pwr gtemp mtemp    sm   mem   enc   dec   jpg   ofa  mclk  pclk    fb  bar1\n"
    "# Idx     W     C     C     %     %     %     %     %     %   MHz   MHz    MB    MB\n",
    "nccl-tests": "#       size         count      type   redop    root     time   algbw   busbw #wrong     time"
    "   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)"
    "  (GB/s)  (GB/s)\n",
    "csv": "_step,_runtime,train/loss,train/grad_norm,perf/tokens_per_sec,val/loss,train/step_time\n",
    "wandb-runs": '"Name","State","Notes","User","Created","Runtime","batch_size","gpus","lr",'
    '"perf/tokens_per_sec","train/loss"\n',
    "serving": "============ Serving Benchmark Result ============\n",
    "link-tests": "# OSU MPI-CUDA Allreduce Latency Test v7.3\n# Size       Avg Latency(us)\n",
}


# Steps after which the head is printed again.
_REPEATED = {"nccl-tests": 30, "serving": 10, "nvidia-smi": 10**6, "csv": 10**6, "wandb-runs": 10**6, "link-tests": 30}


# Lines of no known format, which the reader of learnt formats reads.
LEARNT = "[trainer] update {n} took {s} s, pushed {r} tok/s, objective {l}, held {s} GiB\n"
_DOCUMENT = {
    "markdown": "## Step {n}\n\nWith {n} micro batches a step took **{s} s**, throughput: {r} samples/s.\n\n"
    "| GPUs | step (s) | samples/s | loss |\n|---|---|---|---|\n| {n} | {s} | {r} | {l} |\n| 8 | {s} | {r} | {l} |\n\n",
    "rst": "Step {n}\n-----------------\n\nWith {n} micro batches a step took {s} s, throughput: {r} samples/s.\n\n"
    "====== ========== ========= ======\nGPUs   step (s)   samples/s loss\n====== ========== ========= ======\n"
    "1      {s}      {r}   {l}\n2      {s}      {r}   {l}\n====== ========== ========= ======\n\n",
}  # fmt: skip
"""Documents, which are read up to a size limit."""


def sample(format: str, first: int, count: int) -> Iterable[str]:
    """Return the lines of steps of a format, with changing numbers."""
    if format == "megatron":
        return _block(first).splitlines(keepends=True)
    pattern = LINES.get(format) or _DOCUMENT.get(format, LEARNT)
    head, repeated = _HEADS.get(format, ""), _REPEATED.get(format, 10**9)
    parts: list[str] = []
    for n in range(first, first + count):
        seconds, speed, loss = f"{1 + n % 97 * 0.37:.3f}", f"{4000 + n % 89 * 3.1:.2f}", f"{8 - n % 71 * 0.013:.4f}"
        parts.append(head if n % repeated == 1 else "")
        parts.append(pattern.format(n=n, s=seconds, r=speed, l=loss, e=1 + n % 97 / 8, p=n % 100))
    if format == "tensorboard-json":
        return [f"[{''.join(parts).rstrip(', ')}]\n"]
    return "".join(parts).splitlines(keepends=True)


def reader(format: str) -> Callable[[list[str]], Iterator[Record]]:
    """Return the function that reads lines of a format."""
    if format != "learnt":
        return lambda lines: records(lines, format.removesuffix("-deepspeed"))
    columns = learnt.learn(sample(format, 1, 1_000), "bench")
    return lambda lines: learnt.read(lines, columns)


def json_rate() -> float:
    """Return MB/s at which this machine parses small JSON objects, one thread: how busy it is, beside each rate."""
    lines = [f'{{"step": {n}, "loss": {8 - n % 71 * 0.013:.4f}, "lr": 0.0001}}\n' for n in range(20_000)]
    began = time.process_time()
    for line in lines:
        json.loads(line)
    return sum(map(len, lines)) / 1e6 / (time.process_time() - began)


def rate(format: str, characters: int, repeats: int = 1) -> float:
    """Return MB/s at which a format is read to records, one thread: the median of the repeats."""
    read = reader(format)
    lines: list[str] = []
    size, first = 0, 1
    while size < characters:
        block = list(sample(format, first, 2_000))
        lines += block
        size += sum(map(len, block))
        first += 2_000
    rates: list[float] = []
    for _ in range(repeats):
        began = time.process_time()
        count = sum(1 for record in read(lines) if record.kind != "unread")
        rates.append(size / 1e6 / (time.process_time() - began))
        if not count:
            raise RuntimeError(f"the reader of {format} returned no record of its sample")
    return statistics.median(rates)


def slowest_reader_mb_per_s(scale: Scale) -> Result:
    """Measure every reader of logs; print each, return the slowest, against parsing JSON before it.

    A second of one reader is too short on a machine whose speed changes: each rate is the median of three.

    Documents are printed too, at their largest size: they are parsed by libraries, up to a limit.
    """
    repeats = scale.repeats(3)
    rates: dict[str, float] = {}
    baselines: dict[str, float] = {}
    for name in ("megatron", *LINES, "learnt"):
        baselines[name] = json_rate()
        rates[name] = rate(name, scale.of(MEGABYTES * 1_000_000), repeats)
    documents = {
        name: rate(name, scale.of(limit), repeats) for name, limit in (("markdown", MAX_DOCUMENT), ("rst", MAX_RST))
    }
    for name, value in sorted((rates | documents).items(), key=lambda item: item[1]):
        beside = f"JSON {baselines[name]:.0f} MB/s" if name in baselines else "document"
        sys.stdout.write(f"  {name:<22} {value:>8.1f} MB/s   {beside}\n")
    slowest = min(rates, key=lambda name: rates[name])
    against = f"{baselines[slowest]:,.0f} MB/s of json.loads before it; {slowest} is the slowest of {len(rates)}"
    return Result(rates[slowest], against, repeats, rates[slowest] / baselines[slowest])

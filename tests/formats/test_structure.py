"""How numbers stand in a line, and which step the parts of a file belong to."""

from __future__ import annotations

import pytest

from parlab.formats import Document, Record, read_document, records
from parlab.formats.grammar.pairs import pairs
from parlab.formats.launch import command_arguments, is_command
from parlab.formats.schema import Segment


def read(text: str) -> Document:
    return read_document(text.splitlines(keepends=True), file="test")


def only(text: str) -> Segment:
    (segment,) = read(text).segments
    return segment


def steps(text: str) -> list[Record]:
    return [record for record in records(text.splitlines(keepends=True)) if record.kind == "step"]


def test_values_in_front_of_their_names_are_read_with_the_command_above_them() -> None:
    lines = [f"  {n:3d} {t} s run, 9.8{n}0 loss, 0.0000{n} LR, 120.5 GB used, 15900.25 GFLOPS\n" for n, t in
             ((1, 60.5), (2, 4.25), (3, 4.5), (4, 4.25))]  # fmt: skip
    segment = only("MODEL_SIZE=7B BS=16 DP=4 SEQLEN=2048 python3 train.py\n\n" + "".join(lines))
    assert segment.step_time_s is not None
    assert (segment.records, segment.step_time_s.median) == (4, 4.375)
    assert (segment.launch.world_size, segment.launch.sequence_length) == (4, 2048)
    assert segment.metrics["flops"].last == 15900.25e9
    assert segment.metrics["loss"].first == 9.81
    assert segment.gpu_mem_max_bytes is None, "7B is a number of parameters, and no GPU has what all of them use"


def test_a_number_in_front_of_cells_counts_the_steps_and_a_bare_time_is_theirs() -> None:
    lines = [f"{n} | loss 5.{n} | lr 3.0e-04 | 912.{n}ms\n" for n in (30, 40, 50)]
    segment = only("".join(lines))
    assert segment.steps is not None
    assert segment.step_time_s is not None
    assert (segment.steps.first, segment.steps.last) == (30, 50)
    assert segment.step_time_s.median == pytest.approx(0.9124)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("step_time=350 (ms)", ("step_time_s", 0.35)),
        ("step time: 0.35 (s)", ("step_time_s", 0.35)),
        ("flopsPS=441.0T", ("flopsps", 441e12)),
        ("tokens seen: 1.5B", ("tokens_seen", 1.5e9)),
        ("peak memory: 12.5G", ("max_allocated_bytes", 12.5 * 2**30)),
        ("model size: 8B", ("model_size", 8e9)),
    ],
)
def test_a_value_keeps_its_unit_or_its_power_of_ten(cell: str, value: tuple[str, float]) -> None:
    (step,) = steps(f"Step 1: loss=2.1, {cell}\n")
    assert step.values[value[0]] == pytest.approx(value[1])


def test_a_sentence_is_no_line_of_values_in_front_of_names() -> None:
    assert pairs("3 nodes, 8 GPUs each, ready") == []


def test_an_entry_in_front_of_its_bar_has_the_step_and_the_rate_of_that_bar() -> None:
    entry = "{{'loss': 1.{0}, 'grad_norm': 0.5, 'learning_rate': 2e-05, 'epoch': 0.0}}\n"
    bar = "  0%|▏         | {0}/90 [00:0{1}<05:00,  {1}.25s/it]\n"
    text = "  0%|          | 0/90 [00:00<?, ?it/s]\n" + "".join(
        entry.format(n) + bar.format(n, 2 * n) for n in (1, 2, 3)
    )
    assert [(s.iteration, s.values["loss"], s.values["step_time_s"]) for s in steps(text)] == [
        (1, 1.1, 2.25), (2, 1.2, 4.25), (3, 1.3, 6.25),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "bar",
    ["  1%| | 1/100 [04:41<**78:02:42, 281.24s/it]**\n", "> 1%| | 1/100 [04:41&lt;78:02:42, 281.24s/it]\n"],
)
def test_a_bar_that_was_pasted_with_marks_is_read(bar: str) -> None:
    (step,) = steps("{'loss': 0.5, 'grad_norm': 0.2, 'learning_rate': 2e-07, 'epoch': 0.0}\n" + bar)
    assert (step.iteration, step.values["step_time_s"]) == (1, 281.24)


def test_timers_of_the_engine_are_no_step_time_beside_the_bar_of_the_trainer() -> None:
    head = "[2026-01-15 14:48:0{n},446] [INFO] [logging.py:107:log_dist] [Rank 0] time (ms) | "
    text = "".join(
        head.format(n=n)
        + "fwd_microstep: 1140.25 | bwd_microstep: 1170.25 | step_microstep: 105.5\n"
        + head.format(n=n)
        + "fwd: 1140.25 | bwd: 1170.25 | step: 105.5\n"
        + head.format(n=n)
        + "optimizer_allgather: 32.0 | optimizer_step: 45.5\n"
        + f"  {n}%|#  | {n}/100 [00:0{5 * n % 10}<16:30,  5.00s/it]\n"
        + f"{{'loss': 1.{9 - n}, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.0{n}}}\n"
        for n in (1, 2, 3)
    )
    segment = only(text)
    assert segment.step_time_s is not None
    assert (segment.records, segment.step_time_s.median) == (3, 5.0)
    assert segment.loss is not None
    assert segment.loss.last == 1.6
    assert "fwd" in segment.timers_s


def test_step_and_loss_behind_a_bar_and_the_settings_of_the_banner_are_read() -> None:
    text = (
        "==((====))==  Unsloth - 2x faster free finetuning | Num GPUs = 1\n"
        "    \\   /|    Num examples = 4,000 | Num Epochs = 1\n"
        "O^O/ \\_/ \\    Batch size per device = 4 | Gradient Accumulation steps = 2\n"
        "\\        /    Total batch size = 8 | Total steps = 500\n"
        "  0%|          | 1/500 [00:21<2:13:19, 20.50s/it]0, 3.2521\n"
        "  2%|▎         | 11/500 [02:01<1:00:48, 11.25s/it]10, 2.9398\n"
    )
    segment = only(text)
    assert [(s.iteration, s.values["loss"], s.values["step_time_s"]) for s in steps(text)] == [
        (0, 3.2521, 20.5), (10, 2.9398, 11.25),
    ]  # fmt: skip
    launch = segment.launch
    assert (launch.world_size, launch.micro_batch_size, launch.global_batch_size) == (1, 4, 8)
    assert launch.gradient_accumulation_steps == 2


def test_the_cells_of_a_wrapped_line_are_whole() -> None:
    line = (
        "Training epoch 0, iteration {n}/19 | lr: 1.5e-06 | global_batch_size: 256 | global_step: {n} | "
        "max_memory_reserved: 41466159104 | max_memory_allocated: 39930270720 | reduced_train_loss: 9.{n} | "
        "train_step_timing in s: 12.5 | consumed_samples: {n}00 | TFLOPS_per_GPU: 81.5"
    )
    whole = [line.format(n=n) for n in (3, 4, 5)]
    wrapped = "\n\n".join("\n".join(text[at : at + 110] for at in range(0, len(text), 110)) for text in whole)
    document = read(wrapped + "\n")
    (segment,) = document.segments
    assert (segment.records, segment.gpu_mem_max_bytes, document.unread.lines) == (3, 39930270720.0, 0)
    assert segment.metrics["consumed_samples"].last == 500.0


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        ("accelerate launch --num_processes 16 --num_machines 2 train.py --lr 1e-5", 16),
        ("NCCL_DEBUG=INFO srun -n 32 python train.py --bf16", 32),
        ("torchrun --nproc-per-node=8 --nnodes=2 train.py --bf16", 16),
        ("+ srun --nodes=4 --ntasks-per-node 8 python train.py --bf16", 32),
        ("DP=8 BS=8 python3 train.py", None),
    ],
)
def test_a_command_states_the_gpus(command: str, gpus: int | None) -> None:
    assert is_command(command)
    assert command_arguments(command).get("world_size") == gpus


def test_averages_of_a_batch_are_its_loss_and_its_parts_are_not() -> None:
    line = "2026-01-30 17:34:0{n} INFO Epoch 1, batch {n}0, batch avg ctc loss 0.4{n}, batch avg loss 0.6{n}"
    segment = only("".join(f"{line.format(n=n)}, total avg loss: 0.7, batch size: 10\n" for n in (1, 2, 3)))
    assert segment.loss is not None
    assert (segment.loss.first, segment.loss.last) == (0.61, 0.63)


def test_lines_of_deepspeed_between_those_of_another_trainer_are_its_timers() -> None:
    head = "[2026-01-15 14:48:0{n},446] [INFO] [logging.py:107:log_dist] [Rank 0] "
    head += "time (ms) | fwd: 40.25 | bwd: 70.5 | step: 5.5\nstep {n}/90 | loss: 2.{n} | step time: 0.5 s | tok/s: 80\n"
    text = "".join(head.format(n=n) for n in (1, 2, 3))
    document = read(text)
    (segment,) = document.segments
    assert segment.step_time_s is not None
    assert (segment.records, segment.step_time_s.median, document.unread.lines) == (3, 0.5, 0)
    assert segment.timers_s["fwd"].median == 0.04025


def test_ranks_without_a_tag_and_with_losses_of_their_own_are_one_launch() -> None:
    text = "".join(
        f"step {n} | loss: 2.{n}{rank} | step time: 0.{5 + rank} s\n" for n in (1, 2, 3) for rank in range(4)
    )
    segment = only(text)
    assert segment.step_time_s is not None
    assert (segment.records, segment.launch.world_size, segment.step_time_s.median) == (3, 4, 0.8)


def test_a_step_that_three_launches_print_is_not_one_of_three_ranks() -> None:
    text = "".join(f"step 100 | loss: 2.{n} | step time: {n}.5 s\n" for n in (1, 2, 4))
    assert len(read(text).segments) == 3


def test_cells_between_bars_behind_a_counter_in_brackets_are_no_table() -> None:
    text = "".join(
        f"2026-02-01 10:0{n}:00,123 - INFO - [Step   {n}00/ 5000] loss=2.{n} | 1.25 s/step | 26.5k tok/s | MFU 38.1%\n"
        for n in (1, 2, 3)
    )
    document = read(text)
    (segment,) = document.segments
    assert segment.step_time_s is not None
    assert (document.format, segment.records, segment.step_time_s.median) == ("pairs", 3, 1.25)
    assert segment.tokens_per_s == 26500.0
    assert segment.metrics["mfu"].last == pytest.approx(0.381)


def test_a_line_counts_once_in_its_epoch_whatever_records_it_gives() -> None:
    lines = [f"2026-01-02 10:{n:02d}:00,494 - mmdet - INFO - Epoch [2][{n}00/9000]\tlr: 0.01, time: 0.5, "
             f"data_time: 0.03, memory: 6836, loss: 0.4{n}\n" for n in (12, 13, 14)]  # fmt: skip
    read_records = records(lines)
    places = [(record.kind, record.iteration) for record in read_records if record.kind in ("step", "timers")]
    assert places == [(kind, n) for n in (1200, 1300, 1400) for kind in ("step", "timers")]


def test_an_average_in_brackets_is_another_value_of_its_own_kind() -> None:
    lines = [f"eta: 0:05:00  iter: {n}  loss: 2.{n} (2.9)  time: 0.5{n} (0.61)  data: 0.01 (0.02)  max mem: 900\n"
             for n in (10, 20, 30)]  # fmt: skip
    segment = only("".join(lines))
    assert segment.step_time_s is not None
    assert segment.step_time_s.median == 0.52
    metrics = segment.metrics
    assert {name: (metrics[name].median, metrics[name].kind) for name in metrics if name.startswith("average")} == {
        "average_loss": (2.9, "average"),
        "average_step_time_s": (0.61, "average"),
        "average_data_time_s": (0.02, "average"),
    }
    assert set(segment.timers_s) == {"data_time"}, "an average is no phase of a step"


def test_one_number_in_brackets_may_be_anything() -> None:
    assert all(not cell.key.endswith("average") for cell in pairs("loss: 2.5 (12), lr: 0.1"))


BAR_OF_WORK = "Loading shards of the checkpoint: 100%|##| 4/4 [00:02<00:00, 2.0it/s]\n"
ROW = "      {n}/9      4.5G     1.{n}     2.{n}       32        640: 100%|####| 50/50 [00:10<00:00,  5.00it/s]\n"


def test_the_names_of_columns_stand_above_their_rows() -> None:
    scores = "                 Class     Images       mAP      mAP50: 100%|##| 4/4 [00:02<00:00, 2.0it/s]\n"
    text = "      Epoch    GPU_mem   box_loss   cls_loss  Instances       Size\n"
    for n in (1, 2, 3):
        text += ROW.format(n=n) + scores + f"                   all        498      0.{n}      0.9\n"
        text += "                   cat        200      0.4      0.5\n"
    segment = only(text)
    assert segment.last is not None
    assert {name: segment.last.values[name] for name in ("box_loss", "cls_loss", "instances", "size")} == {
        "box_loss": 1.3, "cls_loss": 2.3, "instances": 32.0, "size": 640.0,
    }  # fmt: skip
    assert [point.values["map"] for point in segment.validation] == [0.1, 0.2, 0.3], "a class is not all of them"
    assert set(segment.timers_s) == {"validation"}
    assert set(only(ROW.format(n=1) + ROW.format(n=2) + BAR_OF_WORK).timers_s) == {"loading-shards-of-the-checkpoint"}


def test_a_box_counts_its_steps_in_a_row() -> None:
    box = "----------------------\n| time/ |  |\n|  fps | 26{n} |\n|  iterations | {n} |\n"
    box += "| train/ |  |\n| loss | 1.{n} |\n"
    read_steps = steps("".join(box.format(n=n) for n in (1, 2, 3)) + "----------------------\n")
    assert [(step.iteration, step.values) for step in read_steps] == [
        (n, {"fps": 260.0 + n, "loss": 1 + n / 10}) for n in (1, 2, 3)
    ]


def test_a_box_that_counts_nothing_is_no_step() -> None:
    text = "----------------------\n| loss | 1.5 |\n| time | 3.5 |\n----------------------\n"
    assert steps(text) == []


def test_epochs_are_the_steps_of_a_log_that_counts_nothing_else() -> None:
    text = "".join(
        f"2026-01-02 10:0{n}:00.123456: Epoch {n}\n2026-01-02 10:0{n}:01.000001: Current learning rate: 0.01\n"
        f"2026-01-02 10:0{n}:40.000001: train_loss 0.{n}5\n2026-01-02 10:0{n}:41.000001: val_loss 0.{n}6\n"
        f"2026-01-02 10:0{n}:42.000001: Epoch time: 4{n}.5 s\n"
        for n in (1, 2, 3)
    )
    assert [(step.iteration, step.values["loss"]) for step in steps(text)] == [(1, 0.15), (2, 0.25), (3, 0.35)]
    segment = only(text)
    assert segment.step_time_s is None, "the time of an epoch is not that of a step"
    assert [point.values["val_loss"] for point in segment.validation] == [0.16, 0.26, 0.36]


def test_epochs_are_no_steps_beside_lines_that_count_them() -> None:
    text = "".join(
        f"Epoch {n}\nlearning rate: 0.{n}\n" + "".join(f"step {n}{k}: loss 2.{k}, step time: 0.5 s\n" for k in (1, 2))
        for n in (1, 2)
    )
    assert [step.iteration for step in steps(text)] == [11, 12, 21, 22]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("iter= {n} sample=7{n}/5608 loss=4.5 dt=00:04:5{n} eta=03:29:33 |-->", {"sample": 72.0, "step_time_s": 292.0}),
        ("[Epoch 3 9/10][Iteration {n}][Wall Clock 5{n}.5s] Train 90 in 0.{n}5seconds. "
         "Throughput is 36{n}.5 records/second. Loss is 0.5.",
         {"wall_clock_s": 52.5, "records": 90.0, "step_time_s": 0.25, "samples_per_s": 362.5, "loss": 0.5}),
        ("[10:21:48][#00{n}][242{n}ms][1.3686][0.4142]", {"step_time_s": 2.422}),
        ("2026-01-02 10:00:00 - log.py:50 - [{n}/80] \te_mae: 0.12, f_mae: 0.16, time/step=24{n}ms",
         {"step_time_s": 0.242}),
        ("step 1{n} - loss 10.{n} - moving ave loss 10.5", {"loss": 10.2, "moving_ave_loss": 10.5}),
        ("global step 1{n} lr 0.001 step-time 3.{n}s wps 0.3{n}K", {"step_time_s": 3.2, "tokens_per_s": 320.0}),
        ("Epoch 0, batch 1{n}, loss[loss=0.{n}, over 9.00 frames.], tot_loss[loss=0.{n}5, over 19.00 frames.], lr: 0.1",
         {"loss": 0.2, "tot_loss_loss": 0.25}),
        ("| epoch 010  1{n} / 8223 loss=1.2{n} (1.5), wps=96{n}, lr=0.1",
         {"loss": 1.22, "average_loss": 1.5, "tokens_per_s": 962.0}),
        ("Epoch: [1/9][1{n}/90] Data 0.1 (0.5) Batch 0.8{n} (3.8) Remain 436:08:39 Loss 1.{n} Accuracy 0.3.",
         {"data": 0.1, "average_data": 0.5, "batch": 0.82, "average_batch": 3.8, "loss": 1.2, "accuracy": 0.3}),
        ("iters: 1{n}, epoch: 1 | loss: 0.{n}", {"loss": 0.2}),
        ("ep 9 train, step {n}, ce 5.2, mem_usage:cuda:3 6.{n}GB, 1.5 sec/step", {"memory_bytes": 6.2 * 2**30}),
    ],
    ids=["durations", "sentences", "brackets", "counter", "dash", "thousands", "groups", "equals", "spaces", "iters",
         "device"],
)  # fmt: skip
def test_cells_are_read_in_the_form_that_they_have(line: str, values: dict[str, float]) -> None:
    second = steps("".join(line.format(n=n) + "\n" for n in (1, 2, 3)))[1]
    assert second.iteration in (2, 12)
    assert {name: pytest.approx(second.values.get(name)) for name in values} == values


def test_a_line_with_the_learning_rate_of_a_step_states_more_of_it() -> None:
    text = "".join(f"Iteration {n}, loss = 0.{n}\nIteration {n}, lr = 0.00{n}\n" for n in (10, 20, 30))
    segment = only(text)
    assert segment.records == 3
    assert segment.last is not None
    assert segment.last.values == {"loss": 0.3, "learning_rate": 0.003}


def test_lines_of_signs_without_a_title_make_no_document() -> None:
    text = "".join(f"======\nshape torch.Size([8, 2048])\n{n} of them, latency:  0.90609{n}\n" for n in range(4))
    document = read(text)
    assert document.format == "unknown"
    assert [example.line for example in document.unread.examples][:3] == [1, 2, 3]
    assert read("Results\n=======\n\nThe step takes 12 ms.\n").format == "rst"


@pytest.mark.parametrize(
    "line", ["INFO:root:Epoch[{e}] Batch [{b}]\tSpeed: 53{b}.5 samples/sec\taccuracy=0.5\n",
             "INFO:root:[Epoch {e}][Batch {b}], Speed: 53{b}.5 samples/sec, ObjLoss=3.5\n"],
)  # fmt: skip
def test_batches_of_the_next_epoch_are_no_other_launch(line: str) -> None:
    again = [line.format(e=e, b=b) for e in (0, 1, 2) for b in (50, 100)]
    assert [step.iteration for step in steps("".join(again))] == [50, 100, 151, 201, 252, 302]
    assert only("".join(again)).records == 6
    onward = [line.format(e=e, b=b) for e, b in ((0, 50), (0, 100), (1, 150), (1, 200), (2, 250))]
    assert [step.iteration for step in steps("".join(onward))] == [50, 100, 150, 200, 250]

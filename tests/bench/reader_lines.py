"""Lines of a step of more formats, for the benchmark of the readers; see readers.py."""

from __future__ import annotations

MORE_LINES: dict[str, str] = {
    "detectron2": "[01/02 10:00:00 d2.utils.events]:  eta: 5:12:11  iter: {n}  total_loss: {l}  loss_cls: {l}"
    "  time: {s}  last_time: {s}  data_time: 0.0123  lr: 0.00039962  max_mem: 5123M\n",
    "openmmlab": "2026/01/02 10:00:00 - mmengine - INFO - Iter(train) [{n:7d}/1000000]  lr: 1.9820e-03  eta: 12:11:01"
    "  time: {s}  data_time: 0.0112  memory: 4321  loss: {l}\n",
    "torchvision": "Epoch: [0]  [{n:7d}/1000000]  eta: 0:52:11  lr: 0.1  img/s: {r}  loss: {l} (6.9312)  acc1: 0.7812"
    " (0.3412)  time: {s}  data: 0.0003  max mem: 7154\n",
    "imagenet": "Epoch: [0][{n:7d}/1000000]\tTime {s} ( 0.912)\tData  0.000 ( 0.512)\tLoss {l} (7.05)\tAcc@1   0.00"
    " (  0.11)\n",
    "timm": "Train: 0 [{n:7d}/1000000 (  4%)]  Loss: {l} (6.95)  Time: {s}s, {r}/s  (0.412s, 2485.44/s)  LR: 1.000e-05"
    "  Data: 0.012 (0.045)\n",
    "open-clip": "2026-01-02,10:00:00 | INFO | Train Epoch: 0 [ {n}/1000000 (4%)] Data (t): 0.012 Batch (t): {s},"
    " {r}/s, {s}/s/gpu LR: 0.000123 Logit Scale: 14.286 Loss: {l} (6.4567)\n",
    "keras": "{n}/1000000 [=====>......] - ETA: 10s - loss: {l} - accuracy: 0.4512\n"
    "{n}/1000000 [============] - 12s 7ms/step - loss: {l} - accuracy: 0.5512\n",
    "tf-cnn": "{n}\timages/sec: {r} +/- 0.1 (jitter = 1.2)\t{l}\n",
    "horovod": "Iter #{n}: {r} img/sec per GPU\n",
    "olmo": "2026-01-02 10:00:00.123\tnode:0\tolmo.train:1061\tINFO\t[step={n}/1000000]\n"
    "    train/CrossEntropyLoss={l}\n"
    "    throughput/device/tokens_per_second={r}\n    System/Peak GPU Memory (MB)=35,123\n",
    "lingua": "0: INFO    26-01-02 10:00:00.123456 - 0:01:10 - step: {n}  acc: 0  loss: {l}  grad: 1.21e+00  flops:"
    " 4.12e+14  wps: {r}  iter: {s}  data: 0.001  lr: 3.00e-05  mem: 45%  pow: 612.3 W\n",
    "litgpt": "Epoch 1 | iter {n} step {n} | loss train: {l}, val: n/a | iter time: {s} ms (step) remaining"
    " time: 3:02:11\n",
    "neuronx": "LOG Tue May  1 10:00:00 2026 - (0, {n}) step_loss : {l} learning_rate : 3.00e-04 throughput : {r}"
    " grad_norm : 3.1\n",
    "paddle": "[2026-01-02 10:00:00,123] [    INFO] - loss: {l}, learning_rate: 1e-05, global_step: {n},"
    " max_memory_allocated: 41.12, interval_runtime: {s}, interval_samples_per_second: {s},"
    " interval_tokens_per_second_per_device: {r}, interval_steps_per_second: {s}\n",
    "recbole": "Thu 01 Dec 2025 10:00:00 INFO  epoch {n} training [time: {s}s, train loss: {l}]\n"
    "Thu 01 Dec 2025 10:00:00 INFO  epoch {n} evaluating [time: {s}s, valid_score: 0.212300]\n",
    "mindformers": "2026-01-02 10:00:00,123 - mindformers[mindformers/core/callback/callback.py:314] - INFO -"
    " {{ Epoch:[  1/  2], step:[{n:7d}/1000000], loss: {l}, per_step_time: 2345ms, lr: 1e-05, loss_scale: 65536.0,"
    " train_throughput_per_npu: {s}T\n",
    "estimator": "INFO:tensorflow:loss = {l}, step = {n} ({s} sec)\nINFO:tensorflow:global_step/sec: {s}\n",
    "modded-nanogpt": "step:{n}/1000000 train_time:12345ms step_avg:{s}ms\n",
    "opennmt": "[2026-01-02 10:00:00,123 INFO] Step {n}/1000000; acc: 12.1; ppl: {l}; xent: 6.1; lr: 0.00001;"
    " sents: 12812; bsz: 4012/3812/64; 41232/39121 tok/s;    62 sec;\n",
    "marian": "[2026-01-02 10:00:00] Ep. 1 : Up. {n} : Sen. {n} : Cost {l} * 1,234,567 @ 12,345 after 12,345,678 :"
    " Time {s}s : {r} words/s : gNorm 1.2 : L.r. 1.0e-04\n",
    "link-tests": "{p:<12d}{s:>20}\n",
    "xtuner": "[XTuner][RANK 0][2026-01-02 10:00:00][INFO] Epoch 1 Step {n}/1000000 lr: 0.000020  time: {s}"
    " text_tokens: 32768.0 reduced_llm_loss: {l} max_memory: 41.20 GB"
    " reserved_memory: 55.13 GB grad_norm: 0.312 tgs: {r} e2e_tgs: {r}\n",
    "areal": "20260102-10:00:00.123 StatsLogger INFO: Epoch 1/10 Step 1/117 Train step {n}/1000000 done.\n"
    "│ timeperf/e2e               │ {s} │ timeperf/rollout           │ {s} │\n"
    "│ grpo_actor/task_reward/avg │ {l} │ timeperf/train_step        │ {s} │\n",
    "tinker": "Step {n}\n│ optim/lr                  │ 0.000040     │\n│ time/total                │ {s}     │\n"
    "│ time/train                │ {s}     │\n│ train_mean_nll            │ {l}     │\n",
}

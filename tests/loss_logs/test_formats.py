"""Every format that people have their losses in, as small logs."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_resume.loss_logs import LossCurve, read_curves

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return written


def one(path: Path) -> LossCurve:
    (curve,) = read_curves(path)
    return curve


def pairs(curve: LossCurve) -> list[tuple[int, float]]:
    return [(point.step, point.loss) for point in curve.points]


STATE = {
    "global_step": 40,
    "epoch": 0.4,
    "log_history": [
        {"epoch": 0.1, "grad_norm": 1.5, "learning_rate": 1e-4, "loss": 4.25, "step": 10},
        {"epoch": 0.2, "grad_norm": 0.75, "learning_rate": 9e-5, "loss": 3.5, "step": 20},
        {"epoch": 0.2, "eval_loss": 3.4, "eval_runtime": 1.2, "step": 20},
        {"epoch": 0.3, "grad_norm": 0.5, "learning_rate": 8e-5, "loss": 3.25, "step": 30},
        {"epoch": 0.4, "grad_norm": 0.5, "learning_rate": 7e-5, "loss": 3.0, "step": 40},
        {"epoch": 0.4, "step": 40, "total_flos": 1e15, "train_loss": 3.5, "train_runtime": 20.5},
    ],
}
STATE_PAIRS = [(10, 4.25), (20, 3.5), (30, 3.25), (40, 3.0)]

NANOGPT = """\
number of parameters: 10.65M
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2654, time 30211.10ms, mfu -100.00%
iter 10: loss 3.2412, time 18.61ms, mfu 20.04%
step 20: train loss 2.9, val loss 2.95
saving checkpoint to out
iter 20: loss 2.7894, time 18.55ms, mfu 20.05%
"""

LLM_C = """\
| max_sequence_length T | 1024                       |
val loss 11.009
step    1/19560 | loss 11.009617 (+nanz)| norm 15.3450 (+nanz)| lr 8.57e-07 | 3050.78 ms | 48.8% bf16 MFU | 171840 tok/s
step    2/19560 | loss 10.960651 (+1.20z)| norm 15.4221 (-0.10z)| lr 1.71e-06 | 1250.00 ms | 48.8% bf16 MFU | 419 tok/s
step    3/19560 | loss 10.867 (+0.00z)| norm 12.1 (+0.00z)| lr 2.57e-06 | 1250.00 ms | -100.0% bf16 MFU | 419430 tok/s
"""

MODDED = """\
s:0 is not a step here
step:0/5100 val_loss:10.8258 train_time:213ms step_avg:nanms
step:1/5100 train_loss:10.8258 train_time:309ms step_avg:nanms
step:2/5100 train_loss:10.0801 train_time:420ms step_avg:nanms
step:3/5100 train_time:500ms step_avg:nanms
"""

MEGATRON = """\
training ...
 [2025-01-02 03:04:05] iteration      100/  500000 | consumed samples:        25600 | elapsed time per iteration (ms): \
512.3 | learning rate: 1.500000E-05 | global batch size:   256 | lm loss: 1.030000E+01 | loss scale: 1.0 | grad norm: \
7.125 | number of skipped iterations:   0 | number of nan iterations:   0 |
 validation loss at iteration 100 | lm loss value: 9.9E+00 | lm loss PPL: 1.9E+04 |
 [2025-01-02 03:05:05] iteration      200/  500000 | consumed samples:        51200 | elapsed time per iteration (ms): \
512.3 | learning rate: 3.000000E-05 | global batch size:   256 | lm loss: 9.250000E+00 | loss scale: 1.0 | grad norm: \
2.500 | number of skipped iterations:   0 | number of nan iterations:   0 |
"""

GPT_NEOX = """\
 samples/sec: 12.5 | iteration 10/ 1000 | elapsed time per iteration (ms): 80.0 | learning rate: 6.0E-06 | \
approx flops per GPU: 20.5TFLOPS | lm_loss: 1.075000E+01 | loss scale: 65536.0 | number of skipped iterations: 0 | \
number of nan iterations: 0 |
 samples/sec: 12.5 | iteration 20/ 1000 | elapsed time per iteration (ms): 80.0 | learning rate: 1.2E-05 | \
approx flops per GPU: 20.5TFLOPS | lm_loss: 9.500000E+00 | loss scale: 65536.0 | number of skipped iterations: 0 | \
number of nan iterations: 0 |
"""

PRINTED = """\
{'loss': 2.5, 'grad_norm': 1.25, 'learning_rate': 2e-05, 'epoch': 0.01}
  1%|          | 10/1000 [00:10<16:30,  1.0s/it]{'loss': '2.25', 'grad_norm': '1.125', 'learning_rate': '1e-05', \
'epoch': '0.02'}
{'eval_loss': 2.2, 'eval_runtime': 3.1, 'epoch': 0.02}
{'loss': 2.0, 'grad_norm': tensor(0.5, device='cuda:0'), 'learning_rate': 5e-06, 'epoch': 0.03}
{'train_runtime': 12.5, 'train_loss': 2.25, 'epoch': 0.03}
"""

TORCHTITAN = "".join(
    f"[rank0]:[titan] 2025-03-01 10:00:0{step},123 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: {loss:7.4f}  "
    "\x1b[33mmemory: 30.5GiB(32%)  \x1b[34mtps: 7,500  \x1b[35mmfu: 40.1%\x1b[39m\n"
    for step, loss in ((1, 8.25), (2, 8.125))
)

LIGHTNING = """\
Epoch 0:   0%|          | 0/2 [00:00<?, ?it/s]
Epoch 0:  50%|#####     | 1/2 [00:01<00:01, 5.2it/s, v_num=3, train_loss=2.500]
Epoch 0: 100%|##########| 2/2 [00:02<00:00, 5.2it/s, v_num=3, train_loss=2.250]
Epoch 1:  50%|#####     | 1/2 [00:01<00:01, 5.2it/s, v_num=3, train_loss_step=nan, val_loss=9.0]
Validation DataLoader 0: 100%|##########| 1/1 [00:00<00:00, 3.1it/s]
Epoch 1: 100%|##########| 2/2 [00:02<00:00, 5.2it/s, v_num=3, val_loss=9.0, train_loss_step=2.125]
"""

CASES: dict[str, tuple[str, str, list[tuple[int, float]], list[float | None]]] = {
    "trainer state": ("trainer_state.json", json.dumps(STATE), STATE_PAIRS, [1.5, 0.75, 0.5, 0.5]),
    "trainer state, indented": ("trainer_state.json", json.dumps(STATE, indent=2), STATE_PAIRS, [1.5, 0.75, 0.5, 0.5]),
    "trainer state under another name": ("old.json", json.dumps(STATE), STATE_PAIRS, [1.5, 0.75, 0.5, 0.5]),
    "a JSON list in a file without ending": (
        "losses",
        json.dumps(STATE["log_history"]),
        STATE_PAIRS,
        [1.5, 0.75, 0.5, 0.5],
    ),
    "JSON lines": (
        "log.jsonl",
        '{"step": 1, "loss": 2.5, "grad_norm": 1}\n{"step": 2, "loss": 2.25, "grad_norm": 0.5}\n',
        [(1, 2.5), (2, 2.25)],
        [1, 0.5],
    ),
    "JSON lines with other names": (
        "metrics.jsonl",
        '{"iteration": 1, "lm loss": 2.5, "grad norm": 1}\n{"iteration": 2, "lm loss": 2.25, "grad norm": 0.5}\n',
        [(1, 2.5), (2, 2.25)],
        [1, 0.5],
    ),
    "JSON lines from wandb": (
        "history.jsonl",
        '{"_step": 0, "train/global_step": 10, "train/loss": 2.5, "_runtime": 3}\n'
        '{"_step": 1, "train/global_step": 10, "eval/loss": 2.4, "_runtime": 4}\n'
        '{"_step": 2, "train/global_step": 20, "train/loss": "NaN", "_runtime": 5}\n',
        [(10, 2.5), (20, math.nan)],
        [None, None],
    ),
    "JSON lines with sections": (
        "nested.jsonl",
        '{"step": 1, "train": {"loss": 2.5, "grad_norm": 1.5}, "val": {"loss": 9}}\n'
        '{"step": 2, "train": {"loss": 2.0}}\n',
        [(1, 2.5), (2, 2.0)],
        [1.5, None],
    ),
    "JSON lines with evaluations by mode": (
        "run.log.json",
        '{"mode": "train", "iter": 50, "loss": 1.5}\n{"mode": "val", "iter": 50, "loss": 9.0}\n'
        '{"mode": "train", "iter": 100, "loss": 1.25}\n',
        [(50, 1.5), (100, 1.25)],
        [None, None],
    ),
    "JSON in a text log": (
        "train.log",
        '2024-01-01 00:00:00 | INFO | train_inner | {"epoch": 1, "update": 0.1, "loss": "12.5", "num_updates": "100", '
        '"gnorm": "3.5"}\n'
        '2024-01-01 00:00:09 | INFO | train_inner | {"epoch": 1, "update": 0.2, "loss": "11.5", "num_updates": "200", '
        '"gnorm": "2.5"}\n',
        [(100, 12.5), (200, 11.5)],
        [3.5, 2.5],
    ),
    "CSV": ("losses.csv", "step,loss,grad_norm\n1,2.5,1\n2,,\n3,inf,0.5\n", [(1, 2.5), (3, math.inf)], [1, 0.5]),
    "CSV with semicolons": ("losses.csv", "Iter;Training Loss\n1;2.5\n2;2.25\n", [(1, 2.5), (2, 2.25)], [None, None]),
    "CSV with quotes and comments": (
        "a.csv",
        '# made by hand\n"global_step", "train/loss"\n"10.0", "2.5"\n"20.0", "2.25"\n',
        [(10, 2.5), (20, 2.25)],
        [None, None],
    ),
    "Lightning's CSV": (
        "metrics.csv",
        "epoch,step,train_loss_epoch,train_loss_step,val_loss\n0,49,,2.5,\n0,99,,2.25,\n0,99,2.4,,2.6\n",
        [(49, 2.5), (99, 2.25)],
        [None, None],
    ),
    "columns under names": (
        "a.txt",
        "step  loss  grad_norm\n1  2.5  1\n2  2.25  0.5\n",
        [(1, 2.5), (2, 2.25)],
        [1, 0.5],
    ),
    "columns": ("a.txt", "# step loss\n1 2.5\n2 nan\n\n3 -0.25\n", [(1, 2.5), (2, math.nan), (3, -0.25)], [None] * 3),
    "columns with commas": ("a.csv", "1,2.5,0.5\n2,2.25,0.25\n", [(1, 2.5), (2, 2.25)], [0.5, 0.25]),
    "Megatron": ("megatron.log", MEGATRON, [(100, 10.3), (200, 9.25)], [7.125, 2.5]),
    "GPT-NeoX": ("neox.out", GPT_NEOX, [(10, 10.75), (20, 9.5)], [None, None]),
    "nanoGPT": ("out.txt", NANOGPT, [(0, 4.2654), (10, 3.2412), (20, 2.7894)], [None] * 3),
    "llm.c": ("run.log", LLM_C, [(1, 11.009617), (2, 10.960651), (3, 10.867)], [15.345, 15.4221, 12.1]),
    "llm.c's main.log": (
        "main.log",
        "s:0 tel:11.0076\ns:0 trl:11.0096 lr:0.000001 norm:15.25\ns:1 trl:10.9606 lr:0.000002 norm:14.75\n",
        [(0, 11.0096), (1, 10.9606)],
        [15.25, 14.75],
    ),
    "modded-nanogpt": ("5f.txt", MODDED, [(1, 10.8258), (2, 10.0801)], [None, None]),
    "build-nanogpt": (
        "log.txt",
        "0 val 10.9511\n0 hella 0.2463\n0 train 10.955029\n1 train 10.600000\n",
        [(0, 10.955029), (1, 10.6)],
        [None, None],
    ),
    "what people print": (
        "mine.log",
        "[2024-01-01 10:00:00] Epoch 1, step 10: loss = 2.5, grad norm = 0.5 (3 s/step)\n"
        "[2024-01-01 10:00:09] Epoch 1, step 20: loss = 1.25e-1, grad norm = 0.25 (3 s/step)\n",
        [(10, 2.5), (20, 0.125)],
        [0.5, 0.25],
    ),
    "torchtitan in colours": ("titan.log", TORCHTITAN, [(1, 8.25), (2, 8.125)], [None, None]),
    "Lightning's progress bars": (
        "a.log",
        LIGHTNING,
        [(1, 2.5), (2, 2.25), (3, math.nan), (4, 2.125)],
        [None] * 4,
    ),
    "printed mappings": ("train.log", PRINTED, [(1, 2.5), (2, 2.25), (3, 2.0)], [1.25, 1.125, 0.5]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_the_training_loss_and_the_gradient_norm_are_read_from(tmp_path: Path, case: str, packed: bool) -> None:
    name, text, expected, norms = CASES[case]
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    curve = one(path)
    assert curve.name == str(path)
    assert [step for step, _ in pairs(curve)] == [step for step, _ in expected]
    assert [loss for _, loss in pairs(curve)] == pytest.approx([loss for _, loss in expected], nan_ok=True)
    assert [point.grad_norm for point in curve.points] == norms


def test_steps_that_are_not_given_are_counted_and_that_is_said(write: Write) -> None:
    assert any("counted" in note for note in one(write("a.log", PRINTED)).notes)
    assert one(write("b.log", NANOGPT)).notes == ()


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        ("NaN", math.nan),
        ('"NaN"', math.nan),
        ('"nan"', math.nan),
        ("Infinity", math.inf),
        ('"Infinity"', math.inf),
        ('"inf"', math.inf),
        ('"-Infinity"', -math.inf),
        ("-Infinity", -math.inf),
        ("1e999", math.inf),
        ("1" + "0" * 400, math.inf),
    ],
)
def test_a_loss_that_is_no_finite_number_is_kept_however_it_is_spelled(
    write: Write, spelled: str, meant: float
) -> None:
    text = f'{{"log_history": [{{"step": 1, "loss": 2.5}}, {{"step": 2, "loss": {spelled}}}]}}'
    losses = [point.loss for point in one(write("trainer_state.json", text)).points]
    assert losses == pytest.approx([2.5, meant], nan_ok=True)


def test_a_loss_of_null_is_left_out_and_that_is_said(write: Write) -> None:
    curve = one(write("a.jsonl", '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": null}\n'))
    assert pairs(curve) == [(1, 2.5)]
    assert any("null" in note for note in curve.notes)


def test_a_loss_of_another_name_is_taken_and_named(write: Write) -> None:
    curve = one(write("a.csv", "step,my_lm_loss,aux_loss,val_loss\n1,2.5,0.1,9\n2,2.25,0.1,9\n"))
    assert pairs(curve) == [(1, 2.5), (2, 2.25)]
    assert curve.notes == ("the loss is taken from 'my_lm_loss'",)


def megatron(step: int, rest: str, skipped: int = 0, nan: int = 0) -> str:
    return (
        f" iteration {step:8d}/ 1000 | learning rate: 1.0E-04 |{rest} loss scale: 65536.0 | grad norm: 1.000 | "
        f"number of skipped iterations: {skipped:3d} | number of nan iterations: {nan:3d} |\n"
    )


def test_megatron_prints_no_loss_that_is_nan_so_a_line_without_one_stands_for_it(write: Write) -> None:
    text = megatron(1, " lm loss: 5.5E+00 |") + megatron(2, "") + megatron(3, "", skipped=1, nan=1)
    points = one(write("a.log", text)).points
    assert [point.step for point in points] == [1, 2, 3]
    assert [point.loss for point in points] == pytest.approx([5.5, math.nan, math.nan], nan_ok=True)
    assert [point.skipped for point in points] == [False, False, True]
    assert [point.loss_scale for point in points] == [65536.0] * 3


def test_a_mean_over_no_iteration_is_not_a_loss_of_zero(write: Write) -> None:
    text = megatron(1, " lm loss: 5.5E+00 |") + megatron(2, " lm loss: 0.000000E+00 |", skipped=1)
    last = one(write("a.log", text)).points[-1]
    assert math.isnan(last.loss)
    assert last.skipped


def test_one_skipped_iteration_of_many_leaves_the_mean_of_the_others(write: Write) -> None:
    text = megatron(100, " lm loss: 5.5E+00 |") + megatron(200, " lm loss: 5.25E+00 |", skipped=1)
    last = one(write("a.log", text)).points[-1]
    assert (last.loss, last.skipped) == (5.25, False)


def test_each_run_of_a_wandb_export_becomes_a_curve(write: Write) -> None:
    path = write(
        "wandb_export.csv",
        '"Step","big - lr 1e-3 - train/loss","big - lr 1e-3 - train/loss__MIN","big - lr 1e-3 - train/loss__MAX",'
        '"small - train/loss","small - train/loss__MIN","small - train/loss__MAX"\n'
        '"10","2.5","2.5","2.5","3.5","3.5","3.5"\n'
        '"20","2.25","2.25","2.25","","",""\n'
        '"30","","","","3.25","3.25","3.25"\n',
    )
    curves = read_curves(path)
    assert [curve.name for curve in curves] == [f"{path}: big - lr 1e-3", f"{path}: small"]
    assert [pairs(curve) for curve in curves] == [[(10, 2.5), (20, 2.25)], [(10, 3.5), (30, 3.25)]]


def test_what_a_resumed_training_logs_replaces_what_it_goes_over_again(write: Write) -> None:
    steps = [1, 2, 3, 4, 5, 3, 4, 5, 6]
    rows = "".join(f"step {step} | loss {index}.5\n" for index, step in enumerate(steps))
    curve = one(write("resumed.log", rows))
    assert pairs(curve) == [(1, 0.5), (2, 1.5), (3, 5.5), (4, 6.5), (5, 7.5), (6, 8.5)]
    assert any("3 points were replaced" in note for note in curve.notes)


def test_a_training_that_was_started_anew_replaces_everything(write: Write) -> None:
    curve = one(write("a.txt", "10 5\n20 4\n30 3\n1 9\n2 8\n"))
    assert pairs(curve) == [(1, 9), (2, 8)]


def test_a_log_that_is_still_being_written_is_read_up_to_its_torn_line(write: Write) -> None:
    curve = one(write("a.jsonl", '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25}\n{"step": 3, "lo'))
    assert pairs(curve) == [(1, 2.5), (2, 2.25)]
    assert curve.notes == ("lines left out because they are no JSON objects: 1",)


def test_progress_bars_and_other_encodings_do_no_harm(tmp_path: Path) -> None:
    text = "  5%|\u258c | 1/20\r step 1: loss 2.5\r 10%|\u2588 | 2/20\r step 2: loss 2.25\n"
    for name, data in {
        "bar": text.encode(),
        "utf-16": text.encode("utf-16"),
        "bom": text.encode("utf-8-sig"),
        "broken": text.encode() + b"\xff\xfe\xff",
    }.items():
        path = tmp_path / f"{name}.log"
        path.write_bytes(data)
        assert pairs(one(path)) == [(1, 2.5), (2, 2.25)], name


def test_the_interval_is_the_usual_distance_of_two_points(write: Write) -> None:
    assert one(write("a.txt", "1 5\n10 4\n20 3\n30 2\n")).interval == 10
    assert one(write("b.txt", "7 5\n")).interval == 1


def events(folder: Path, scalars: dict[str, list[tuple[int, float]]], suffix: str = "", *, new: bool = False) -> Path:
    """Write an event file as TensorBoard's own writer does, in the old form of scalars or in the new one."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    writer = EventFileWriter(str(folder), filename_suffix=suffix)
    for tag, points in scalars.items():
        for step, value in points:
            each: Any = Summary.Value(tag=tag, simple_value=value)
            if new:
                metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
                each = Summary.Value(tag=tag, tensor=make_tensor_proto(value, dtype="float32"), metadata=metadata)
            writer.add_event(Event(step=step, wall_time=float(step), summary=Summary(value=[each])))
    writer.close()
    (path,) = folder.glob(f"*tfevents*{suffix}")
    return path


SCALARS = {
    "eval/loss": [(10, 9.0), (20, 8.0)],
    "train/loss": [(10, 2.5), (20, math.nan), (30, 2.25)],
    "train/grad_norm": [(10, 1.5), (30, 0.5)],
    "train/learning_rate": [(10, 1e-4)],
}


@pytest.mark.parametrize("new", [False, True], ids=["simple values", "tensors"])
def test_the_training_loss_is_found_among_the_scalars_of_tensorboard(tmp_path: Path, new: bool) -> None:
    curve = one(events(tmp_path, SCALARS, new=new))
    assert [point.step for point in curve.points] == [10, 20, 30]
    assert [point.loss for point in curve.points] == pytest.approx([2.5, math.nan, 2.25], nan_ok=True)
    assert [point.grad_norm for point in curve.points] == [1.5, None, 0.5]
    assert curve.notes == ("the loss is the scalar 'train/loss'",)


def test_the_event_files_of_one_folder_are_one_training(tmp_path: Path) -> None:
    first = events(tmp_path, {"loss": [(1, 5.0), (2, 4.0), (3, 3.0)]}, ".a")
    second = events(tmp_path, {"loss": [(3, 3.5), (4, 2.0)]}, ".b")
    first.rename(tmp_path / "events.out.tfevents.1000.host")
    second.rename(tmp_path / "events.out.tfevents.2000.host")
    curve = one(tmp_path)
    assert curve.name == str(tmp_path)
    assert pairs(curve) == [(1, 5.0), (2, 4.0), (3, 3.5), (4, 2.0)]


def test_an_event_file_is_read_up_to_where_it_is_damaged_and_that_is_said(tmp_path: Path) -> None:
    path = events(tmp_path, {"loss": [(step, 2.5) for step in range(100)]})
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert len(one(path).points) == 99
    assert any("cut off" in note for note in one(path).notes)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + b"\0\0\0\0\0\0" + whole[middle + 6 :])
    assert 0 < len(one(path).points) < 60
    assert any("damaged after" in note for note in one(path).notes)

"""Every mistake is one line that names the place, the key, what was found and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_resume.config.fields import every_key
from hpc_resume.config.load import load_config
from hpc_resume.config.schema import RunConfig
from hpc_resume.errors import ConfigError


def message(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


def written(folder: Path, text: str | bytes, *overrides: str) -> str:
    """Return the message for a file with this text, with its folder cut off."""
    path = folder / "c.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return message(path, *overrides).replace(f"{folder}/", "")


UNREADABLE = {
    "empty": ("", "c.yaml: the file is empty"),
    "only a comment": ("# soon\n", "c.yaml: the file is empty"),
    "a list": ("- a\n", "c.yaml: the file must be a mapping of settings (key: value); found a sequence"),
    "a word": ("hello\n", "c.yaml: the file must be a mapping of settings (key: value); found a scalar"),
    "not text": (b"\xff\xfe\x00", "c.yaml: not a text file (byte 0 is not UTF-8)"),
    "an open bracket": ("seed: 1\na: [1\n", "c.yaml:3:1: not valid YAML: expected ',' or ']'"),
    "a tab": ("a:\n\t- b\n", "c.yaml:2:1: not valid YAML: found character '\\t'"),
    "a key twice": ("training:\n  steps: 3\n  steps: 4\n", "c.yaml:3:3: not valid YAML: found duplicate key steps"),
    "two documents": ("seed: 1\n---\nseed: 2\n", "c.yaml:2:1: not valid YAML: but found another document"),
    "a Python object": ("a: !!python/object:os.x {}\n", "c.yaml:1:4: not valid YAML: could not determine"),
    "an anchor in itself": ("x: &a [*a]\n", "c.yaml:1:4: not valid YAML: YAML recursive aliases"),
    "an open interpolation": ("name: ${\n", "c.yaml: name cannot be read: no viable alternative at input '${'"),
}


@pytest.mark.parametrize(("text", "expected"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_is_no_config_is_refused_with_its_place(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert written(tmp_path, text).startswith(expected)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert message(tmp_path / "no.yaml") == f"{tmp_path}/no.yaml: there is no such file"
    assert message(tmp_path) == f"{tmp_path}: cannot be read (Is a directory); a YAML file is expected"


WRONG_KEYS = {
    "a section": ("trainin: {steps: 3}", "trainin is not a setting; did you mean training?"),
    "a setting": ("training: {step: 3}", "training.step is not a setting; did you mean training.steps?"),
    "in the wrong section": (
        "learning_rate: 3",
        "learning_rate is not a setting; did you mean training.learning_rate?",
    ),
    "in monitor": (
        "monitor: {spike_minrise: 3}",
        "monitor.spike_minrise is not a setting; did you mean monitor.spike_min_rise?",
    ),
    "in recovery": ("recovery: {preste: x}", "recovery.preste is not a setting; did you mean recovery.preset?"),
    "in a fault": ("faults: [{stp: 4}]", "faults[0].stp is not a setting; did you mean faults[0].step?"),
    "a number": (
        "checkpoints: {1: 2}",
        "checkpoints.1 is not a setting; there are interval_steps, failures_per_day, certify_after_steps, mode, "
        "staging_dir, verify, keep_last, keep_every_steps, keep_quarantined",
    ),
    "of a sweep": (
        "sweep: {training.step: [1]}",
        "sweep: training.step is not a setting; did you mean training.steps?",
    ),
}


@pytest.mark.parametrize(("text", "expected"), WRONG_KEYS.values(), ids=WRONG_KEYS)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path, text: str, expected: str) -> None:
    assert written(tmp_path, text) == f"c.yaml:1: {expected}"


WRONG_VALUES = {
    "text for a number": ("training: {steps: a}", "training.steps is 'a'; it must be a whole number"),
    "a fraction": ("training: {steps: 3.5}", "training.steps is 3.5; it must be a whole number"),
    "true for a number": ("training: {steps: true}", "training.steps is true; it must be a whole number"),
    "a number for true": (
        "training: {gradient_checkpointing: 3}",
        "training.gradient_checkpointing is 3; it must be true or false",
    ),
    "a number for text": ("name: 3", "name is 3; it must be text"),
    "not a number": ("training: {learning_rate: .nan}", "training.learning_rate is NaN; it must be a number"),
    "infinity": ("training: {learning_rate: .inf}", "training.learning_rate is Infinity; it must be a number"),
    "a choice": (
        "training: {precision: bf61}",
        "training.precision is 'bf61'; it must be one of fp32, bf16; did you mean bf16?",
    ),
    "a choice in a list": (
        "recovery: {perturb_on: [foo]}",
        'recovery.perturb_on is ["foo"]; it must be a list, each one',
    ),
    "too short a list": (
        "training: {adam_betas: [1]}",
        "training.adam_betas is [1]; it must be a list of 2 values, each a number",
    ),
    "text for a list": ("data: {paths: a}", "data.paths is 'a'; it must be a list, each text"),
    "a list for a mapping": ("model: {config: [3]}", "model.config is [3]; it must be a mapping"),
    "null for a number": ("training: {steps: null}", "training.steps is null; it must be a whole number"),
    "null for a mapping": ("model: {config: null}", "model.config is null; it must be a mapping"),
    "optional": ("cluster: {walltime_min: x}", "cluster.walltime_min is 'x'; it must be a whole number or null"),
    "an empty section": (
        "training:",
        "training is null; it must be a section with settings of its own; remove the line",
    ),
    "a number for a section": ("training: 3", "training is 3; it must be a section with settings of its own"),
    "a list for a section": ("training: [3]", "training is [3]; it must be a section with settings of its own"),
    "a section for a list": ("faults: {kind: spike}", 'faults is {"kind": "spike"}; it must be a list of mappings'),
    "a fault that is none": ("faults: [3]", "faults[0] is 3; it must be a section with settings of its own"),
    "a value to fill in": ("name: '???'", "name is '???', which stands for a value to fill in"),
    "an unknown reference": ("name: '${nope}'", "name cannot be resolved: Interpolation key 'nope' not found"),
    "an empty path": ("runs_dir: ''", "runs_dir is '', which is no path; name one"),
    "an unknown home": ("runs_dir: ~nobody-here/x", "runs_dir is '~nobody-here/x'"),
    "no DeepSpeed file": ("training: {deepspeed: no.json}", "training.deepspeed names no.json, which cannot be read"),
}


@pytest.mark.parametrize(("text", "expected"), WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_a_wrong_value_is_refused_with_what_would_be_right(tmp_path: Path, text: str, expected: str) -> None:
    assert written(tmp_path, text).startswith(f"c.yaml:1: {expected}")


OUT_OF_RANGE = {
    "a count": ("training: {steps: 0}", "training.steps is 0; it must be above 0"),
    "in monitor": ("monitor: {skipped_rate: 2}", "monitor.skipped_rate is 2.0; it must be above 0 and at most 1"),
    "in recovery": ("recovery: {loss_budget: -1}", "recovery.loss_budget is -1; it must be 0 or more"),
    "in the second fault": ("faults: [{step: 3}, {step: 0}]", "faults[1].step is 0; it must be above 0"),
    "a beta": (
        "training: {adam_betas: [1, 0.9]}",
        "training.adam_betas is [1.0, 0.9]; each must be at least 0 and below 1",
    ),
    "a rank that is not there": ("faults: [{rank: 4}]", "faults[0].rank is 4; ranks go from 0 to 0"),
    "GPUs": ("cluster: {gpus_per_node: -1}", "cluster.gpus_per_node is -1; it must be 0 or more"),
    "cores": ("cluster: {cpus_per_rank: 0}", "cluster.cpus_per_rank is 0; it must be above 0"),
    "nodes of one machine": ("cluster: {kind: local, nodes: 2}", "cluster.nodes is 2; with cluster.kind=local"),
    "a range of one machine": ("cluster: {kind: local, nodes: 1-2}", "cluster.nodes is 1-2; with cluster.kind=local"),
    "a range that goes down": ("cluster: {nodes: 4-2}", "cluster.nodes is 4-2; a range goes from the smallest number "),
    "a range from nothing": ("cluster: {nodes: 0-2}", "cluster.nodes is 0; it must be above 0"),
    "a range without an end": ("cluster: {nodes: 2-}", "cluster.nodes is '2-'; it must be a number of nodes, or a "),
    "no nodes": ("cluster: {nodes: -1}", "cluster.nodes is -1; it must be above 0"),
    "nodes in words": ("cluster: {nodes: two}", "cluster.nodes is 'two'; it must be a number of nodes, or a range "),
    "half a node": ("cluster: {nodes: 1.5}", "cluster.nodes is 1.5; it must be a whole number or text"),
    "a rank that a small range has not": (
        "{cluster: {nodes: 2-4}, faults: [{rank: 2}]}",
        "faults[0].rank is 2; ranks go from 0 to 1",
    ),
    "a range in which nothing else fits": (
        "{cluster: {nodes: 3-4}, training: {gradient_accumulation_steps: 8}}",
        "cluster.nodes is 3-4, but on 3 nodes no gradient accumulation gives the global batch of 32 samples: begin "
        "the range with a number that fits (4), or make training.gradient_accumulation_steps, 8, a multiple of 3",
    ),
    "a range whose smallest number does not fit": (
        "{cluster: {nodes: 6-16}, training: {gradient_accumulation_steps: 2}}",
        "cluster.nodes is 6-16, but on 6 nodes no gradient accumulation gives the global batch of 32 samples: begin "
        "the range with a number that fits (8 or 16), or make training.gradient_accumulation_steps, 2, a multiple of 3",
    ),
    "a warm-up without end": (
        "training: {steps: 5, warmup_steps: 6}",
        "training.warmup_steps is 6; it must be from 0 to training.steps (5)",
    ),
    "a rising end": (
        "training: {learning_rate: 1e-4, min_learning_rate: 1e-3}",
        "training.min_learning_rate is 0.001; it must not exceed training.learning_rate (0.0001)",
    ),
    "no model": ("model: {weights: random}", "model needs name_or_path, or config with a model_type; found neither"),
    "weights of nothing": (
        "model: {weights: pretrained, config: {model_type: gpt2}}",
        "model.weights is pretrained, but model.name_or_path",
    ),
    "a name with a slash": ("name: a/b", "name is 'a/b'; it must be one folder name"),
    "the folder above": ("name: ..", "name is '..'; it must be one folder name"),
    "a name like an option": ("name: -x", "name is '-x'; it must be one folder name"),
    "an empty name": ("name: ''", "name is empty; give one, or leave it out to use the file's name"),
}


@pytest.mark.parametrize(("text", "expected"), OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
def test_what_cannot_mean_anything_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    assert written(tmp_path, text).startswith(f"c.yaml:1: {expected}")


TAKEN = {
    "sbatch: {array: 0-3}": "sbatch.array can't be set: the runs of a sweep are the elements; cluster.parallelism",
    "sbatch: {nodes: 2}": "sbatch.nodes can't be set: use cluster.nodes",
    "sbatch: {ntasks: 2}": "sbatch.ntasks can't be set: use cluster.nodes and cluster.ranks_per_node",
    "sbatch: {ntasks_per_node: 2}": "sbatch.ntasks_per_node can't be set: use cluster.ranks_per_node",
    "sbatch: {cpus-per-task: 2}": "sbatch.cpus-per-task can't be set: use cluster.cpus_per_rank",
    "sbatch: {time: 60}": "sbatch.time can't be set: use cluster.walltime_min",
    "sbatch: {partition: x}": "sbatch.partition can't be set: use cluster.partition",
    "sbatch: {account: x}": "sbatch.account can't be set: use cluster.account",
    "sbatch: {job-name: x}": "sbatch.job-name can't be set: use name",
    "sbatch: {output: x}": "sbatch.output can't be set: logs lie in the run's folder",
    "sbatch: {open_mode: truncate}": "sbatch.open_mode can't be set: logs of earlier attempts are kept",
    "sbatch: {requeue: false}": "sbatch.requeue can't be set: every job is sent with --requeue",
    "sbatch: {no-requeue: true}": "sbatch.no-requeue can't be set: a job that may not be requeued",
    "sbatch: {signal: USR1@60}": "sbatch.signal can't be set: the supervisor has its own clock",
    "sbatch: {wrap: x}": "sbatch.wrap can't be set: the supervisor is what the job runs",
    "sbatch: {export: NONE}": "sbatch.export can't be set: the ranks need the environment of submit",
    "srun: {nodes: 2}": "srun.nodes can't be set: use cluster.nodes",
    "srun: {ntasks-per-node: 2}": "srun.ntasks-per-node can't be set: use cluster.ranks_per_node",
    "srun: {nodelist: n1}": "srun.nodelist can't be set: the supervisor chooses the nodes",
    "srun: {output: x}": "srun.output can't be set: logs lie in the run's folder",
    "srun: {kill_on_bad_exit: 0}": "srun.kill_on_bad_exit can't be set: a rank that is gone must end the others",
}


@pytest.mark.parametrize("text", TAKEN)
def test_an_option_of_slurm_that_is_ours_is_refused_with_what_to_use_instead(tmp_path: Path, text: str) -> None:
    assert written(tmp_path, f"cluster: {{{text}}}").startswith(f"c.yaml:1: cluster.{TAKEN[text]}")


def test_any_other_option_of_slurm_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "cluster:\n  cpus_per_rank: 8\n  gpus_per_node: 0\n  setup: [module load cuda]\n  python: /opt/python\n"
        "  sbatch: {qos: high, exclude: [n1, n2], exclusive: true, hold: false, mem: 0}\n"
        "  srun: {container-image: torch.sqsh, mpi: pmix}\n"
    )
    cluster = load_config(path, ["cluster.sbatch.qos=low"]).cluster
    assert cluster.sbatch == {"qos": "low", "exclude": ["n1", "n2"], "exclusive": True, "hold": False, "mem": 0}
    assert cluster.srun == {"container-image": "torch.sqsh", "mpi": "pmix"}
    assert (cluster.cpus_per_rank, cluster.gpus_per_node) == (8, 0)
    assert (cluster.setup, cluster.python) == (("module load cuda",), "/opt/python")


def test_a_file_whose_name_is_no_folder_name_asks_for_one(tmp_path: Path) -> None:
    path = tmp_path / "my run.yaml"
    path.write_text("seed: 1\n")
    assert message(path).startswith(f"{path}: name is 'my run'; it must be one folder name")


def test_the_line_is_that_of_the_setting(tmp_path: Path) -> None:
    text = "# a run\nseed: 1\nfaults:\n- kind: spike\n- kind: spik\n"
    assert written(tmp_path, text).startswith("c.yaml:5: faults[1].kind is 'spik'; it must be one of spike, ")


BAD_OVERRIDES = {
    "no equals sign": ("training.steps", "'training.steps' is not key=value; write for example training.steps=100"),
    "no key": ("=3", "'=3' is not key=value"),
    "no value": ("training.steps=", "training.steps is null; it must be a whole number"),
    "a line break": ("training.steps=[1,\n", "training.steps=[1, cannot be read as YAML"),
    "not YAML": ("training.steps=[1", "training.steps=[1 cannot be read as YAML: while parsing a flow sequence"),
    "a section": (
        "training={steps: 3}",
        "training is a whole section; set what is in it one by one (training.trainer,",
    ),
    "an unknown key": ("training.step=3", "training.step is not a setting; did you mean training.steps?"),
    "no section": ("steps=3", "steps is not a setting; did you mean training.steps?"),
    "an option": ("--training.steps=3", "--training is not a setting; did you mean training?"),
    "below a setting": ("training.steps.x=3", "training.steps.x is not a setting; training.steps is a whole number"),
    "a list element": ("faults[0].step=3", "faults[0] is not a setting; give the whole list faults=[...]"),
    "a wrong fault": ("faults=[{kin: spike}]", "faults[0].kin is not a setting; did you mean faults[0].kind?"),
    "out of range": ("training.steps=-1", "training.steps is -1; it must be above 0"),
    "a combination": (
        "training.warmup_steps=10",
        "training.warmup_steps is 10; it must be from 0 to training.steps (5)",
    ),
    "the other half of a combination": (
        "monitor.spike_window_steps=4",
        "monitor.spike_warmup_steps is 5; it must not exceed monitor.spike_window_steps (4)",
    ),
    "below a file's name": (
        "training.deepspeed.zero_optimization.stage=3",
        "training.deepspeed.zero_optimization.stage cannot be set: training.deepspeed is 'zero.json', not a mapping",
    ),
}


@pytest.mark.parametrize(("override", "expected"), BAD_OVERRIDES.values(), ids=BAD_OVERRIDES)
def test_a_bad_override_is_said_to_be_on_the_command_line(tmp_path: Path, override: str, expected: str) -> None:
    (tmp_path / "zero.json").write_text("{}")
    text = "training: {steps: 5, deepspeed: zero.json}\n"
    assert written(tmp_path, text, override).startswith(f"on the command line: {expected}")


ODD = {
    "null": "null",
    "an empty list": "[]",
    "very long text": "x" * 5000,
    "an empty mapping": "{}",
    "a negative number": "-1",
    "a huge number": "1e400",
    "empty text": "''",
    "a missing value": "'???'",
    "a zero byte": '"\\0"',
    "a line break": '"a\\nb"',
    "a null in a list": "[null]",
    "a list in a list": "[[1]]",
    "a mapping in a mapping": "{a: {b: 1}}",
    "a number as a key": "{1: 2}",
    "a date": "2024-01-01",
}


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_no_odd_value_of_any_setting_escapes_as_another_kind_of_error(tmp_path: Path, value: str) -> None:
    path, other = tmp_path / "c.yaml", tmp_path / "other.yaml"
    other.write_text("seed: 1\n")
    outcomes = {}
    for key in every_key(RunConfig):
        *outer, last = key.split(".")
        path.write_text("".join(f"{name}: {{" for name in outer) + f"{last}: {value}" + "}" * len(outer) + "\n")
        outcomes[key] = outcome(path)
        outcomes[f"{key}, on the command line"] = outcome(other, f"{key}={value}")
    assert {key: text for key, text in outcomes.items() if len(text.splitlines()) != 1} == {}


def outcome(path: Path, *overrides: str) -> str:
    try:
        return f"loaded {load_config(path, overrides).name!r}"
    except ConfigError as error:
        return str(error)

"""Imports, and lets DeepSpeed find out, what takes a rank seconds; ranks are forked from the process that did."""

from __future__ import annotations

import importlib
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import accelerate  # noqa: F401
import deepspeed.ops

import hpc_resume.trainers.causal_lm  # noqa: F401

_ = deepspeed.ops.__compatible_ops__  # it looks for a compiler, each time that it is new

for _name in (
    # DeepSpeed imports it when it looks at an optimizer; with it comes all of torch's compiler.
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "setuptools",
    "transformers.integrations.deepspeed",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
):
    try:
        importlib.import_module(_name)
    except ImportError:
        continue  # another version's; then it only takes longer

"""Committed checkpoints without a training: weights as ZeRO 0 leaves them, and a manifest."""

from __future__ import annotations

import json
from typing import Any

import torch

from hpc_resume.checkpoints import catalog
from hpc_resume.checkpoints.catalog import Manifest
from hpc_resume.config.schema import RunConfig
from hpc_resume.journal.folder import RunFolder
from hpc_resume.recovery.events import Checkpoint
from hpc_resume.trainers.model import build_model
from hpc_resume.trainers.token_blocks import FACTS, BlockFacts

STATES = "mp_rank_00_model_states.pt"
VOCABULARY = {"vocab_size": 384, "eos_token_id": 1, "pad_token_id": 0}
"""That of bytes."""


def first_weights(config: RunConfig) -> dict[str, torch.Tensor]:
    """Return the weights that a run of this config starts with."""
    weights: dict[str, torch.Tensor] = build_model(config, **VOCABULARY).state_dict()
    return weights


def commit(run: RunFolder, checkpoint: Checkpoint, weights: dict[str, torch.Tensor], **facts: Any) -> None:
    """Commit a checkpoint on the disk, in place of one of the same name."""
    place = run.checkpoints / checkpoint.name
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    torch.save({"module": weights, "optimizer": "not wanted"}, place / STATES)
    about: dict[str, Any] = {
        "schema": catalog.SCHEMA,
        "checkpoint": checkpoint,
        "claim": 1,
        "attempt": 1,
        "world_size": 1,
        "zero_stage": 0,
        "precision": "fp32",
        "model": "",
        "parameters": 0,
        "num_samples": 9,
        "segments": [],
        "versions": {"torch": "2.6"},
        "files": {STATES: catalog.digest_file(place / STATES)},
    }
    (place / catalog.MANIFEST).write_text(Manifest(**{**about, **facts}).to_json())


def tell_facts(run: RunFolder) -> None:
    """Write what a run knows of its samples, without the samples."""
    facts = BlockFacts(n=9, sequence_tokens=32, dtype="uint16", tokenizer="bytes", documents=1, **VOCABULARY)
    run.data.mkdir(exist_ok=True, mode=0o700)
    text = json.dumps({name: getattr(facts, name) for name in BlockFacts.__slots__})
    (run.data / FACTS).write_text(text)

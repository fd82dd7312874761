"""Tiny models and how they are trained, for ranks and for the tests of what they left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.schema import DataConfig, ModelConfig, RunConfig, TrainingConfig

SHAPE = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ODD = {
    "model_type": "gemma4_text",
    "hidden_size": 33,
    "intermediate_size": 65,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "vocab_size_per_layer_input": 384,
    "hidden_size_per_layer_input": 5,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_kv_shared_layers": 0,
}
"""Weights under two names, a buffer that is saved, and sizes that two ranks can't share evenly."""


def config_of(folder: Path, precision: Any, world: int, model: ModelConfig) -> RunConfig:
    return RunConfig(
        seed=7,
        cluster=ClusterConfig(kind="local", ranks_per_node=world),
        model=model,
        data=DataConfig(paths=(str(folder / "text.txt"),), sequence_tokens=32),
        training=TrainingConfig(
            micro_batch_size=2,
            gradient_accumulation_steps=2,
            precision=precision,
            weight_decay=0.1,
        ),
    )

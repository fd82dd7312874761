"""What is trained: a transformers model and its tokenizer, from a folder, a hub name, or a handful of numbers."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, ByT5Tokenizer, GenerationConfig
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils.logging import disable_progress_bar

from hpc_resume.config.schema import ModelConfig, RunConfig
from hpc_resume.errors import TrainerError

Model = Any
"""A `transformers.PreTrainedModel`; that library carries no types."""

Tokenizer = Any
"""A `transformers.PreTrainedTokenizerBase`."""


def load_tokenizer(name: str) -> Tokenizer:
    """Load a tokenizer: `bytes` is ByT5's, which needs no file; anything else is a folder or a hub name."""
    if name == "bytes":
        return ByT5Tokenizer()
    _check_folder("model.tokenizer", name)
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, ImportError) as error:
        raise TrainerError(f"model.tokenizer: loading {name} failed ({_one_line(error)}); {_ADVICE}") from error


def build_model(config: RunConfig, *, vocab_size: int, eos_token_id: int, pad_token_id: int) -> Model:
    """Build the model on the CPU, or in parts where ZeRO 3 loads pretrained weights; equal on all ranks.

    Random weights are a function of `config.seed` alone, for every stage of ZeRO and any number of ranks: each rank
    builds the whole model in fp32, and DeepSpeed takes its part. That needs room for the model in each rank's host
    memory. Pretrained weights go through `deepspeed.zero.Init` at stage 3 and never need it.

    Torch's global random state is left seeded with `config.seed`; a trainer seeds dropout after this.
    """
    disable_progress_bar()  # in a log, each of its redraws is a line
    shape, attention = _shape(config, vocab_size, {"eos_token_id": eos_token_id, "pad_token_id": pad_token_id})
    torch.manual_seed(config.seed)
    if config.model.weights == "pretrained":
        model = _pretrained(config, shape, attention)
        # Or any other model that this process loads later comes out cut into parts, too.
        unset_hf_deepspeed_config()
    else:
        # With zero.Init, transformers draws the weights in another order and, in bf16, on a coarser grid.
        unset_hf_deepspeed_config()
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32, **attention)
    if config.training.gradient_checkpointing:
        # transformers 5 renamed it on the way.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    model.train()
    return model


def build_skeleton(
    config: RunConfig, *, vocab_size: int, eos_token_id: int, pad_token_id: int, dtype: torch.dtype
) -> Model:
    """Build the model without any weights: it takes no memory, and knows their names and shapes."""
    disable_progress_bar()
    shape, attention = _shape(config, vocab_size, {"eos_token_id": eos_token_id, "pad_token_id": pad_token_id})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape, dtype=dtype, **attention)
    if config.model.weights == "pretrained":
        # What `from_pretrained` takes from there besides the weights; many models have none.
        with contextlib.suppress(OSError):
            model.generation_config = GenerationConfig.from_pretrained(config.model.name_or_path)
    return model


_ADVICE = "name an existing folder, or a hub name that this machine can reach or has in its cache"

_OLD_NAMES = frozenset({"rope_theta", "rope_scaling", "partial_rotary_factor"})
"""Values that transformers still takes, but no longer lists (they became `rope_parameters`)."""


def _pretrained(config: RunConfig, shape: Any, attention: dict[str, Any]) -> Model:
    name = config.model.name_or_path
    dtype = torch.bfloat16 if config.training.precision == "bf16" else torch.float32
    try:
        return AutoModelForCausalLM.from_pretrained(name, config=shape, dtype=dtype, **attention)
    except (OSError, ValueError, RuntimeError) as error:
        raise TrainerError(f"model.name_or_path: loading {name} failed ({_one_line(error)}); {_ADVICE}") from error


def _shape(config: RunConfig, vocab_size: int, tokens: dict[str, int]) -> tuple[Any, dict[str, Any]]:
    model = config.model
    values = {name: value for name, value in model.config.items() if name != "model_type"}
    # Where it is not given, transformers takes torch's own (sdpa), which runs everywhere.
    attention = {"attn_implementation": values.pop("attn_implementation")} if "attn_implementation" in values else {}
    base = _base_config(model)
    known = base.to_dict().keys() | type(base).attribute_map.keys() | _OLD_NAMES
    for name in values:
        if name not in known:
            raise TrainerError(
                f"model.config: {base.model_type} has no value called {name}{_meant(name, known)}; correct the name"
            )
    if model.name_or_path is None:
        values = {"vocab_size": vocab_size, "bos_token_id": None, **tokens, **values}
    values["use_cache"] = False
    try:
        shape = (
            type(base)(**values)
            if model.name_or_path is None
            else AutoConfig.from_pretrained(model.name_or_path, **values)
        )
    except Exception as error:  # each model type has its own checks and its own errors
        raise TrainerError(f"model.config: {base.model_type} refuses these values ({_one_line(error)})") from error
    _check_sizes(shape, vocab_size, config)
    return shape, attention


def _check_sizes(shape: Any, vocab_size: int, config: RunConfig) -> None:
    if shape.vocab_size < vocab_size:
        raise TrainerError(
            f"the model has vocab_size {shape.vocab_size}, but tokenizer {config.model.tokenizer} has {vocab_size} "
            "tokens; leave model.config.vocab_size out, or name the model's own tokenizer"
        )
    positions = getattr(shape, "max_position_embeddings", None)
    if positions is not None and positions < config.data.sequence_tokens:
        raise TrainerError(
            f"data.sequence_tokens is {config.data.sequence_tokens}, but the model has max_position_embeddings "
            f"{positions}; make the samples shorter, or raise model.config.max_position_embeddings"
        )


def _base_config(model: ModelConfig) -> Any:
    wanted = model.config.get("model_type")
    if wanted is not None and wanted not in CONFIG_MAPPING:
        raise TrainerError(
            f"model.config.model_type: transformers has no {wanted}{_meant(wanted, CONFIG_MAPPING.keys())}"
        )
    if model.name_or_path is None:
        return CONFIG_MAPPING[wanted]()
    _check_folder("model.name_or_path", model.name_or_path)
    try:
        base = AutoConfig.from_pretrained(model.name_or_path)
    except (OSError, ValueError) as error:
        raise TrainerError(
            f"model.name_or_path: loading {model.name_or_path} failed ({_one_line(error)}); {_ADVICE}"
        ) from error
    if wanted is not None and wanted != base.model_type:
        raise TrainerError(
            f"model.config.model_type is {wanted}, but {model.name_or_path} is a {base.model_type}; leave it out"
        )
    return base


def _check_folder(setting: str, name: str) -> None:
    # transformers would take it for a hub name and complain about its letters.
    if Path(name).is_absolute() and not Path(name).is_dir():
        raise TrainerError(f"{setting}: there is no folder {name}; {_ADVICE}")


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.6)
    return f"; close: {', '.join(close)}" if close else ""


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:200] + " ..."

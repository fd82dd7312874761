"""Building the model and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils.logging import enable_progress_bar, is_progress_bar_enabled

from hpc_resume.config.schema import DataConfig, ModelConfig, RunConfig, TrainingConfig
from hpc_resume.errors import TrainerError
from hpc_resume.trainers.model import build_model, load_tokenizer

SHAPE = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}


def build(seed: int = 0, checkpointing: bool = False, sequence_tokens: int = 32, **model: Any) -> Any:
    config = RunConfig(
        seed=seed,
        model=ModelConfig(**model),
        data=DataConfig(sequence_tokens=sequence_tokens),
        training=TrainingConfig(precision="fp32", gradient_checkpointing=checkpointing),
    )
    return build_model(config, vocab_size=384, eos_token_id=1, pad_token_id=0)


def weights(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_model_of_numbers_takes_vocabulary_and_tokens_from_the_tokenizer() -> None:
    model = build(config=SHAPE)
    assert model.config.vocab_size == 384
    assert (model.config.eos_token_id, model.config.pad_token_id, model.config.bos_token_id) == (1, 0, None)
    assert model.config.use_cache is False
    assert model.training


def test_no_progress_bars_are_drawn_into_logs() -> None:
    enable_progress_bar()
    build(config=SHAPE)
    assert not is_progress_bar_enabled()


def test_weights_are_a_function_of_the_seed() -> None:
    assert torch.equal(weights(build(seed=1, config=SHAPE)), weights(build(seed=1, config=SHAPE)))
    assert not torch.equal(weights(build(seed=1, config=SHAPE)), weights(build(seed=2, config=SHAPE)))


def test_a_larger_vocabulary_may_be_asked_for() -> None:
    assert build(config=SHAPE | {"vocab_size": 512}).get_input_embeddings().weight.shape == (512, 16)


def test_checkpointed_activations_give_the_same_gradients() -> None:
    ids = torch.arange(3, 35)[None]
    norms = []
    for checkpointing in (False, True):
        model = build(checkpointing=checkpointing, config=SHAPE | dict.fromkeys(("resid_pdrop", "embd_pdrop"), 0.0))
        assert model.transformer.gradient_checkpointing == checkpointing
        torch.manual_seed(0)
        model(input_ids=ids, labels=ids).loss.backward()
        norms.append(torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()]))
    assert norms[0] == norms[1]


def test_a_folder_gives_shape_and_pretrained_weights(tmp_path: Path) -> None:
    first = build(seed=5, config=SHAPE)
    first.save_pretrained(tmp_path)
    again = build(name_or_path=str(tmp_path), weights="pretrained")
    assert torch.equal(weights(again), weights(first))
    other = build(name_or_path=str(tmp_path), config={"n_layer": 1})
    assert other.config.n_layer == 1
    assert other.config.n_embd == 16


@pytest.mark.parametrize(
    ("model", "piece"),
    [
        ({"config": {"model_type": "lama"}}, "no lama; close: .*llama"),
        ({"config": SHAPE | {"n_layers": 2}}, "gpt2 has no value called n_layers; close: n_layer"),
        ({"config": {"model_type": "llama", "hidden_size": "big"}}, "llama refuses these values .*hidden_size"),
        ({"config": SHAPE | {"vocab_size": 100}}, "vocab_size 100, but tokenizer bytes has 384 tokens"),
        ({"config": SHAPE, "sequence_tokens": 33}, r"data.sequence_tokens is 33, .*max_position_embeddings 32"),
        ({"name_or_path": "/nowhere/model"}, "there is no folder /nowhere/model"),
    ],
    ids=["type", "name", "value", "vocabulary", "positions", "folder"],
)
def test_a_model_that_cannot_be_built_is_explained_in_one_line(model: dict[str, Any], piece: str) -> None:
    with pytest.raises(TrainerError, match=piece) as caught:
        build(**model)
    assert "\n" not in str(caught.value)


def test_a_missing_tokenizer_folder_is_named() -> None:
    with pytest.raises(TrainerError, match=r"model\.tokenizer: there is no folder /nowhere/tokenizer"):
        load_tokenizer("/nowhere/tokenizer")


def test_the_bytes_tokenizer_needs_no_file() -> None:
    assert len(load_tokenizer("bytes")) == 384

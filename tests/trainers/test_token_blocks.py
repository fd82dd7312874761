"""Text to fixed samples of tokens."""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from hpc_resume.config.schema import DataConfig, ModelConfig
from hpc_resume.errors import TrainerError
from hpc_resume.trainers import token_blocks
from hpc_resume.trainers.model import load_tokenizer
from hpc_resume.trainers.token_blocks import TokenBlocks, prepare_token_blocks, read_block_facts

MODEL = ModelConfig(config={"model_type": "llama"})
EOS = 1


def prepare(tmp_path: Path, data: DataConfig) -> TokenBlocks:
    prepare_token_blocks(data, MODEL, tmp_path / "samples")
    return TokenBlocks.open(tmp_path / "samples")


def stream(blocks: TokenBlocks) -> list[int]:
    return [token for index in range(len(blocks)) for token in blocks[index]["input_ids"].tolist()]


def text_of(tokens: list[int]) -> str:
    return bytes(token - 3 for token in tokens if token != EOS).decode(errors="replace")


def test_documents_are_joined_closed_and_cut_into_blocks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "b.txt").write_text("defgh")
    blocks = prepare(tmp_path, DataConfig(paths=(str(tmp_path / "*.txt"),), sequence_tokens=4))
    joined = [ord(letter) + 3 for letter in "abc"] + [EOS] + [ord(letter) + 3 for letter in "defgh"] + [EOS]
    assert len(blocks) == 2
    assert stream(blocks) == joined[:8]
    assert blocks.facts.documents == 2


def test_a_sample_is_ids_and_equal_labels_in_int64(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 64)
    sample = prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=16))[1]
    assert sample.keys() == {"input_ids", "labels"}
    for values in sample.values():
        assert values.shape == (16,)
        assert values.dtype == torch.int64
    assert torch.equal(sample["input_ids"], sample["labels"])


def test_bytes_are_numbered_as_byt5_numbers_them(tmp_path: Path) -> None:
    text = "Grüße, 世界!\r\n\ttab\n"
    (tmp_path / "a.txt").write_bytes(text.encode())
    expected = load_tokenizer("bytes")(text, add_special_tokens=False)["input_ids"]
    blocks = prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=len(expected)))
    assert stream(blocks) == expected


def test_the_name_of_a_special_token_in_a_text_stays_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one </s> two")
    assert text_of(stream(prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=12)))) == (
        "one </s> two"
    )


def test_undecodable_bytes_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"ab\xffcd")
    blocks = prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=7))
    assert text_of(stream(blocks)) == "ab\N{REPLACEMENT CHARACTER}cd"


def test_a_long_document_is_read_in_pieces_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"line {number} ä\n" for number in range(300))
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    monkeypatch.setattr(token_blocks, "PIECE_CHARACTERS", 50)
    size = len(text.encode())
    blocks = prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=size))
    assert text_of(stream(blocks)) == text
    assert blocks.facts.documents == 1


def test_jsonl_lines_are_documents(tmp_path: Path) -> None:
    rows = ['{"body": "ab"}', "", '{"body": ""}', '{"body": "c\\ud800d", "other": 1}']
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    blocks = prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.jsonl"),), text_field="body", sequence_tokens=7))
    assert stream(blocks) == [100, 101, EOS, 102, ord("?") + 3, 103, EOS]


@pytest.mark.parametrize(
    ("line", "piece"),
    [
        ('{"text": "cut of', "line 2: not JSON"),
        ('{"body": "x", "id": 3}', "line 2: no text in field 'text'.*found body, id"),
        ('{"text": 5}', "line 2: no text in field 'text'"),
        ('["x"]', "line 2: no text in field 'text'.*found list"),
    ],
    ids=["torn", "no field", "a number", "a list"],
)
def test_a_broken_line_is_named_and_leaves_no_cache(tmp_path: Path, line: str, piece: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(TrainerError, match=piece) as caught:
        prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.jsonl"),), sequence_tokens=2))
    assert str(tmp_path / "a.jsonl") in str(caught.value)
    assert list((tmp_path / "samples").iterdir()) == []


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 100)
    (tmp_path / "b.txt").symlink_to("/proc/self/mem")  # opens, and then fails to read, even for root
    with pytest.raises(TrainerError, match=r"reading .*b\.txt failed"):
        prepare(tmp_path, DataConfig(paths=(str(tmp_path),), sequence_tokens=8))


def test_max_samples_stops_early(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name * 100)
    blocks = prepare(tmp_path, DataConfig(paths=(str(tmp_path),), sequence_tokens=10, max_samples=3))
    assert len(blocks) == 3
    assert blocks.facts.documents == 1
    assert (tmp_path / "samples" / "tokens.bin").stat().st_size == 3 * 10 * 2


def test_a_finished_cache_is_kept_when_the_sources_change_or_vanish(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("first " * 20)
    data = DataConfig(paths=(str(source),), sequence_tokens=8)
    before = stream(prepare(tmp_path, data))
    source.write_text("second " * 20)
    assert stream(prepare(tmp_path, data)) == before
    source.unlink()
    assert stream(prepare(tmp_path, data)) == before


def test_a_cache_made_with_other_settings_is_not_used_silently(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 100)
    prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=8))
    with pytest.raises(TrainerError, match=r"data\.sequence_tokens=8 .* says 16"):
        prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=16))


def test_what_a_killed_preparation_left_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 100)
    folder = tmp_path / "samples"
    folder.mkdir()
    (folder / ".tokens.bin.abcd1234").write_bytes(b"half")
    (folder / "tokens.bin").write_bytes(b"whole, but not committed")
    assert read_block_facts(folder) is None
    with pytest.raises(TrainerError, match=r"there is no tokens\.json"):
        TokenBlocks.open(folder)
    prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=8))
    assert sorted(path.name for path in folder.iterdir()) == ["tokens.bin", "tokens.json"]


def test_a_torn_token_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 100)
    prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=8))
    with (tmp_path / "samples" / "tokens.bin").open("r+b") as file:
        file.truncate(30)
    with pytest.raises(TrainerError, match=r"tokens\.bin has 30 bytes, tokens\.json says 192"):
        TokenBlocks.open(tmp_path / "samples")


def test_facts_say_what_the_model_must_know(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 100)
    facts = prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=8)).facts
    assert (facts.vocab_size, facts.eos_token_id, facts.pad_token_id) == (384, 1, 0)
    assert (facts.n, facts.dtype, facts.tokenizer) == (12, "uint16", "bytes")
    assert json.loads((tmp_path / "samples" / "tokens.json").read_text()) == dataclasses.asdict(facts)


def test_progress_is_told_after_every_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("x" * 9 + "\n" + "y" * 9 + "\n" + "z" * 5)
    (tmp_path / "b.txt").write_text("b")
    monkeypatch.setattr(token_blocks, "PIECE_CHARACTERS", 8)
    told: list[int] = []
    data = DataConfig(paths=(str(tmp_path),), sequence_tokens=8)
    prepare_token_blocks(data, MODEL, tmp_path / "samples", told.append)
    assert told == [10, 20, 25, 27]
    prepare_token_blocks(data, MODEL, tmp_path / "samples", told.append)
    assert len(told) == 4


def test_too_few_samples_for_a_batch_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 100)
    blocks = prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=8))
    blocks.require(12)
    with pytest.raises(TrainerError, match="12 samples of 8 tokens, one batch takes 13"):
        blocks.require(13)


def test_not_even_one_sample_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("xyz")
    with pytest.raises(TrainerError, match="1 documents gave 4 tokens, not even one sample of 8"):
        prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=8))


def test_blocks_travel_to_a_loader_process_as_their_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 10_000)
    blocks = prepare(tmp_path, DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=8))
    packed = pickle.dumps(blocks)
    assert len(packed) < 1000
    assert np.array_equal(stream(pickle.loads(packed)), stream(blocks))


def saved_tokenizer(folder: Path, words: int, **special: str) -> str:
    """A tokenizer with one token for each of `w0`, `w1`, ..."""
    vocabulary = {f"w{number}": number for number in range(words)} | {"<end>": words, "<unk>": words + 1}
    core = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=core, **special).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(("words", "dtype"), [(1000, "uint16"), (70_000, "uint32")])
def test_any_tokenizer_serves_and_large_vocabularies_get_wide_tokens(tmp_path: Path, words: int, dtype: str) -> None:
    name = saved_tokenizer(tmp_path / "tokenizer", words, eos_token="<end>")
    (tmp_path / "a.txt").write_text(f"w1 w{words - 1} w3")
    model = ModelConfig(config={"model_type": "llama"}, tokenizer=name)
    prepare_token_blocks(DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=4), model, tmp_path / "samples")
    blocks = TokenBlocks.open(tmp_path / "samples")
    assert stream(blocks) == [1, words - 1, 3, words]
    assert blocks.facts.dtype == dtype
    assert blocks.facts.pad_token_id == blocks.facts.eos_token_id == words


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path) -> None:
    name = saved_tokenizer(tmp_path / "tokenizer", 10)
    (tmp_path / "a.txt").write_text("w1 w2")
    model = ModelConfig(config={"model_type": "llama"}, tokenizer=name)
    with pytest.raises(TrainerError, match="has no end token"):
        prepare_token_blocks(
            DataConfig(paths=(str(tmp_path / "a.txt"),), sequence_tokens=2), model, tmp_path / "samples"
        )


def test_a_saved_dataset_without_the_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # what Python does when a module can't be imported
    saved = tmp_path / "saved"
    saved.mkdir()
    for name in ("state.json", "dataset_info.json", "data-00000-of-00001.arrow"):
        (saved / name).write_text("{}")
    with pytest.raises(TrainerError, match=r"pip install 'hpc_resume\[datasets\]'"):
        prepare(tmp_path, DataConfig(paths=(str(saved),), sequence_tokens=2))


@pytest.mark.filterwarnings("default")  # those of the libraries below it are not ours
def test_a_saved_dataset_gives_its_rows(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"body": ["ab", "", "cde"], "other": [1, 2, 3]})
    rows.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": rows}).save_to_disk(tmp_path / "splits")
    for name in ("saved", "splits"):
        data = DataConfig(paths=(str(tmp_path / name),), text_field="body", sequence_tokens=7)
        prepare_token_blocks(data, MODEL, tmp_path / f"samples-{name}")
        assert stream(TokenBlocks.open(tmp_path / f"samples-{name}")) == [100, 101, EOS, 102, 103, 104, EOS]

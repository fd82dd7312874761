"""Text on disk as fixed samples of tokens: tokenized once, kept beside the run, the same for ever.

Documents are joined, each closed by the tokenizer's end token, and the stream is cut into blocks of `sequence_tokens`;
what is left over at the end is dropped. Ordering comes after this, so a sample is a number and stays one, whatever
happens to the source files later.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from hpc_resume.config.data_files import find_data_files, kind_of
from hpc_resume.config.schema import DataConfig, ModelConfig
from hpc_resume.errors import TrainerError
from hpc_resume.journal.writer import sync_file, sync_folder
from hpc_resume.trainers.model import Tokenizer, load_tokenizer

TOKENS = "tokens.bin"
FACTS = "tokens.json"

PIECE_CHARACTERS = 1 << 20
"""A document longer than this is tokenized in pieces of about this length, cut after a line's end."""

Progress = Callable[[int], None]
"""Told the number of tokens so far."""

Encode = Callable[[str], "np.ndarray[Any, Any]"]
Document = Iterable[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockFacts:
    """What `tokens.json` says about `tokens.bin`; its presence is the commit."""

    n: int
    """Number of samples."""

    sequence_tokens: int
    """Tokens of each sample."""

    dtype: str
    """`uint16` or `uint32`, in the byte order of the machine that wrote them."""

    tokenizer: str
    """Name or folder of the tokenizer."""

    documents: int
    """Documents that were read, at most one of them in part."""

    vocab_size: int
    """Tokens that the tokenizer knows."""

    eos_token_id: int
    """The token that closes each document."""

    pad_token_id: int
    """The tokenizer's padding token; the end token where it has none. No sample holds padding."""


class TokenBlocks(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Samples of a finished token cache, mapped into memory, not read.

    Pickles as its folder, so that DataLoader workers map the file themselves.
    """

    def __init__(self, folder: Path, facts: BlockFacts) -> None:
        self.folder = folder
        self.facts = facts
        shape = (facts.n, facts.sequence_tokens)
        self._tokens = np.memmap(folder / TOKENS, dtype=facts.dtype, mode="r", shape=shape)

    @classmethod
    def open(cls, folder: Path) -> TokenBlocks:
        """Open what `prepare_token_blocks` left in a folder; a `TrainerError` says what is missing or torn."""
        facts = read_block_facts(folder)
        if facts is None:
            raise TrainerError(f"opening the samples in {folder}: there is no {FACTS}; prepare the samples first")
        wanted = facts.n * facts.sequence_tokens * np.dtype(facts.dtype).itemsize
        path = folder / TOKENS
        found = path.stat().st_size if path.exists() else 0
        if found != wanted:
            raise TrainerError(f"opening the samples in {folder}: {path.name} has {found} bytes, {FACTS} says {wanted}")
        return cls(folder, facts)

    def __len__(self) -> int:
        return self.facts.n

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One sample: `input_ids` and `labels`, int64, shape [sequence_tokens]; the model shifts the labels."""
        tokens = torch.from_numpy(self._tokens[index].astype(np.int64))
        return {"input_ids": tokens, "labels": tokens.clone()}

    def __reduce__(self) -> tuple[Any, ...]:
        return (TokenBlocks.open, (self.folder,))

    def require(self, global_batch_size: int) -> None:
        """Refuse to train on fewer samples than one batch takes over all ranks."""
        if len(self) < global_batch_size:
            raise TrainerError(
                f"too little data for one batch: {len(self)} samples of {self.facts.sequence_tokens} tokens, one batch "
                f"takes {global_batch_size}; name more data, or make the batch or data.sequence_tokens smaller"
            )


def read_block_facts(folder: Path) -> BlockFacts | None:
    """Facts of a finished token cache, or None where there is none."""
    path = folder / FACTS
    if not path.exists():
        return None
    try:
        return BlockFacts(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise TrainerError(
            f"reading {path}: not what hpc_resume wrote ({error}); delete {folder} to start anew"
        ) from error


def prepare_token_blocks(
    data: DataConfig, model: ModelConfig, folder: Path, progress: Progress = lambda _tokens: None
) -> None:
    """Tokenize the data into a folder, or leave a finished cache there as it is. One process calls it.

    Neither a document nor the token stream is ever whole in memory, unless it is a row of JSONL or of a dataset.
    `progress` is called after every piece of text. Killed at any moment it leaves no cache, and the next call starts
    anew.
    """
    done = read_block_facts(folder)
    if done is not None:
        _check_same(done, data, model, folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f".{TOKENS}.*"):
        leftover.unlink()
    files = find_data_files(data)
    tokenizer = load_tokenizer(model.tokenizer)
    with _committed(folder / TOKENS) as file:
        facts = _write_blocks(file, files, data, model, tokenizer, progress)
    with _committed(folder / FACTS) as file:
        file.write(json.dumps({name: getattr(facts, name) for name in facts.__slots__}, indent=2).encode())


def _write_blocks(
    file: BinaryIO, files: list[Path], data: DataConfig, model: ModelConfig, tokenizer: Tokenizer, progress: Progress
) -> BlockFacts:
    eos = tokenizer.eos_token_id
    if eos is None:
        raise TrainerError(f"model.tokenizer {model.tokenizer} has no end token, which must close each document")
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32)
    encode = _encoder(model.tokenizer, tokenizer)
    limit = None if data.max_samples is None else data.max_samples * data.sequence_tokens
    tokens = documents = 0
    for document in _documents(files, data):
        before = tokens
        for piece in document:
            tokens += _write(file, encode(piece).astype(dtype))
            progress(tokens)
        if tokens > before:
            tokens += _write(file, np.array([eos], dtype))
            documents += 1
        if limit is not None and tokens >= limit:
            break
    n = tokens // data.sequence_tokens
    if data.max_samples is not None:
        n = min(n, data.max_samples)
    if n == 0:
        raise TrainerError(
            f"data.paths: {documents} documents gave {tokens} tokens, not even one sample of {data.sequence_tokens} "
            "(data.sequence_tokens); name more data"
        )
    file.truncate(n * data.sequence_tokens * dtype.itemsize)
    return BlockFacts(
        n=n,
        sequence_tokens=data.sequence_tokens,
        dtype=dtype.name,
        tokenizer=model.tokenizer,
        documents=documents,
        vocab_size=len(tokenizer),
        eos_token_id=eos,
        pad_token_id=eos if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
    )


def _encoder(name: str, tokenizer: Tokenizer) -> Encode:
    if name == "bytes":
        # What ByT5 does (Xue et al. 2022), less its reading of "</s>" in a text as the end token; and faster.
        offset = tokenizer.offset
        return lambda text: np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16) + offset
    return lambda text: np.asarray(
        tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"],
        dtype=np.int64,
    )


def _write(file: BinaryIO, tokens: np.ndarray[Any, Any]) -> int:
    file.write(tokens.tobytes())
    return len(tokens)


def _documents(files: list[Path], data: DataConfig) -> Iterator[Document]:
    for path in files:
        kind = kind_of(path, data.format)
        if kind == "text":
            yield _text_pieces(path)
        elif kind == "jsonl":
            yield from ([text] for text in _jsonl_texts(path, data.text_field))
        else:
            yield from ([text] for text in _dataset_texts(path, data.text_field))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainerError(
            f"reading {path} failed ({error}); correct the file, or leave it out of data.paths"
        ) from error


def _text_pieces(path: Path) -> Iterator[str]:
    with _reading(path), path.open(encoding="utf-8", errors="replace", newline="") as file:
        while piece := file.read(PIECE_CHARACTERS):
            yield piece + file.readline(PIECE_CHARACTERS)


def _jsonl_texts(path: Path, field: str) -> Iterator[str]:
    with _reading(path), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8", errors="replace"))
            except json.JSONDecodeError as error:
                raise TrainerError(
                    f"{path}, line {number}: not JSON ({error.msg}); correct or remove the line"
                ) from error
            yield _text_of(row, field, f"{path}, line {number}")


def _dataset_texts(path: Path, field: str) -> Iterator[str]:
    try:
        from datasets import DatasetDict, load_from_disk
    except ImportError as error:
        raise TrainerError(
            f"reading {path} needs the datasets library, which is not installed: pip install 'hpc_resume[datasets]'"
        ) from error
    with _reading(path):
        rows = load_from_disk(str(path))
    if isinstance(rows, DatasetDict):
        if "train" not in rows:
            raise TrainerError(f"{path} has no split called train, only {', '.join(rows)}; name one split's folder")
        rows = rows["train"]
    for number, row in enumerate(rows):
        yield _text_of(row, field, f"{path}, row {number}")


def _text_of(row: Any, field: str, place: str) -> str:
    text = row.get(field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        found = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise TrainerError(f"{place}: no text in field {field!r} (data.text_field); found {found}")
    # JSON can spell half a surrogate pair, which no tokenizer takes.
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _check_same(done: BlockFacts, data: DataConfig, model: ModelConfig, folder: Path) -> None:
    made = (done.sequence_tokens, done.tokenizer)
    asked = (data.sequence_tokens, model.tokenizer)
    if made != asked:
        raise TrainerError(
            f"the samples in {folder} were made with data.sequence_tokens={made[0]} and model.tokenizer={made[1]}, the "
            f"config says {asked[0]} and {asked[1]}; a run keeps its samples, so start a new run"
        )


@contextlib.contextmanager
def _committed(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears whole or not at all, also across a power loss."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        sync_file(Path(name))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)

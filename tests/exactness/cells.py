"""The cells of the matrix: what is trained in them, how it is interrupted, and what came of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal

from hpc_resume.config.cluster_section import ClusterConfig
from hpc_resume.config.schema import (
    CheckpointConfig,
    DataConfig,
    ModelConfig,
    RunConfig,
    SupervisorConfig,
    TrainingConfig,
)
from hpc_resume.journal.folder import RunFolder, make_private
from hpc_resume.testing import Interruption, compare, train

STEPS = 8
STAGES = (0, 1, 2, 3)
PRECISIONS: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
RANKS = (1, 2, 4)
ACCUMULATIONS = (1, 4)
CLIP = 0.5
MODEL = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16}
"""Its dropout is that of GPT-2: 0.1 of embeddings, attention and residuals."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination."""

    stage: int
    precision: Literal["fp32", "bf16"]
    ranks: int
    accumulation: int

    @property
    def mode(self) -> Literal["async", "sync"]:
        """How it saves; spread so that each way meets each other value."""
        places = (self.stage, PRECISIONS.index(self.precision), RANKS.index(self.ranks), self.accumulation // 4)
        return "async" if sum(places) % 2 == 0 else "sync"

    @property
    def values(self) -> tuple[Any, ...]:
        return self.stage, self.precision, self.ranks, self.accumulation, self.mode

    def __str__(self) -> str:
        return f"zero{self.stage}-{self.precision}-{self.ranks}ranks-gas{self.accumulation}-{self.mode}"


ALL = [Cell(*values) for values in product(STAGES, PRECISIONS, RANKS, ACCUMULATIONS)]

CORE = [
    Cell(0, "fp32", 2, 4),
    Cell(0, "bf16", 1, 1),
    Cell(1, "bf16", 4, 1),
    Cell(2, "fp32", 1, 4),
    Cell(3, "fp32", 2, 1),
    Cell(3, "bf16", 2, 4),
]
"""Every value, and the stages at both ends in both precisions, where DeepSpeed builds another optimizer for each."""


def pairwise(cells: list[Cell]) -> list[Cell]:
    """Choose cells so that every two values that occur together in any cell occur together in one of these."""
    missing = {pair for cell in cells for pair in _pairs(cell)}
    chosen = []
    while missing:
        best = max(cells, key=lambda cell: len(missing & _pairs(cell)))
        missing -= _pairs(best)
        chosen.append(best)
    return chosen


def _pairs(cell: Cell) -> set[Any]:
    return set(combinations(enumerate(cell.values), 2))


def make_config(folder: Path, cell: Cell, *, interval: int = 2, **deepspeed: Any) -> RunConfig:
    """Return the config of a cell: cosine schedule with warm-up, clipping, weight decay and dropout are on."""
    text = folder / "corpus.txt"
    # 200 blocks of 16 bytes, all different: large batches go through more than one epoch.
    words = " ".join(f"the {n} cats sat on {n * n} mats;" for n in range(200))
    text.write_text(words[: 200 * 16 - 1], encoding="utf-8")
    zero = {"stage": cell.stage, **deepspeed}
    return RunConfig(
        name="cell",
        runs_dir=str(folder),
        seed=7,
        cluster=ClusterConfig(kind="local", ranks_per_node=cell.ranks),
        model=ModelConfig(config=dict(MODEL)),
        data=DataConfig(paths=(str(text),), sequence_tokens=16),
        training=TrainingConfig(
            steps=STEPS,
            micro_batch_size=2,
            gradient_accumulation_steps=cell.accumulation,
            learning_rate=3e-3,
            warmup_steps=3,
            schedule="cosine",
            min_learning_rate=1e-4,
            weight_decay=0.1,
            max_grad_norm=CLIP,
            precision=cell.precision,
            deepspeed={"zero_optimization": zero},
        ),
        checkpoints=CheckpointConfig(interval_steps=interval, certify_after_steps=1, mode=cell.mode),
        supervisor=SupervisorConfig(heartbeat_s=5.0),
    )


def sometimes(cell: Cell) -> list[Interruption]:
    """Return a stop, a kill and a reload, each at a step of this cell's own."""
    draw = random.Random(str(cell))
    stop = draw.randrange(2, 4)
    kill = draw.randrange(stop + 2, STEPS + 1)
    return [
        Interruption("stop", stop),
        Interruption("kill", kill),
        Interruption("reload", draw.randrange(3, STEPS + 1)),
    ]


def in_place_everywhere() -> list[Interruption]:
    """Return a reload before every step that has a checkpoint before it."""
    return [Interruption("reload", step) for step in range(3, STEPS + 1)]


def killed_everywhere() -> list[Interruption]:
    """Return a kill at every step."""
    return [Interruption("kill", step) for step in range(1, STEPS + 1)]


def stopped_everywhere(first: int) -> list[Interruption]:
    """Return a stop at every other step: each is heard one step late, and the last steps are too late for one."""
    return [Interruption("stop", step) for step in range(first, STEPS - 1, 2)]


@dataclass
class Tally:
    """What was compared so far."""

    cells: set[str]
    rows: int = 0
    differences: int = 0

    def __str__(self) -> str:
        return (
            f"exactness: {len(self.cells)} cells, {self.rows} states of ranks compared with an undisturbed run's, "
            f"{self.differences} differences"
        )


TALLY = Tally(set())


def differences(config: RunConfig, folder: Path, name: str, *disturbances: Iterable[Interruption]) -> list[str]:
    """Train undisturbed once, and once with each list of interruptions; return all differences."""
    undisturbed = train(config, folder / "undisturbed")
    return list(_against(undisturbed, config, folder, name, disturbances))


def _against(
    undisturbed: RunFolder,
    config: RunConfig,
    folder: Path,
    name: str,
    disturbances: Iterable[Iterable[Interruption]],
) -> Iterator[str]:
    TALLY.cells.add(name)
    for index, interruptions in enumerate(disturbances):
        place = folder / f"disturbed-{index}"
        share_samples(undisturbed, place)
        found = compare(undisturbed, train(config, place, list(interruptions)))
        TALLY.rows += found.rows
        TALLY.differences += len(found.differences)
        yield from found.differences


def share_samples(run: RunFolder, place: Path) -> None:
    """Give a run that will be the samples of another: ranks wait a second for those to be made."""
    data = place / run.path.name / run.data.name
    make_private(data.parent)
    shutil.copytree(run.data, data)

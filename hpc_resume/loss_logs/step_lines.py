"""Text logs with a step and its loss in each line: nanoGPT, llm.c, modded-nanogpt, and what people print themselves.

- nanoGPT: `iter 250: loss 2.1234, time 12.3ms, mfu 20.1%`
- llm.c: `step 12/9536 | loss 7.123456 (+0.12z)| norm 1.2345 (+0.50z)| lr ...`, and its `main.log`: `s:12 trl:7.1 ...`
- modded-nanogpt: `step:100/5100 train_loss:4.3210 train_time:...`
- build-nanogpt's `log.txt`: `100 train 4.321`
- the progress bars of Lightning: `Epoch 1: 8%|8 | 50/600 [00:09<01:44, 5.2it/s, v_num=3, train_loss=2.3]`, in which a
  step is a batch, counted anew in each epoch

Lines with a validation loss are evaluations, also where they have a training loss beside it, as nanoGPT's
`step 250: train loss 2.1, val loss 2.2`: that one is not of the step but of many batches.
"""

from __future__ import annotations

import re
from typing import Any

_NUMBER = r"([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf(?:inity)?))(?![\w%])"
_EVALUATION = re.compile(r"(?<![a-z])(?:val|valid|validation|eval|evaluation|test|dev)[\s_/.-]*loss", re.IGNORECASE)
_STEP = re.compile(
    r"(?<![\w/])(?:global[ _]step|train(?:ing)?[ _]step|steps?|iterations?|iters?)\s*[\])]?\s*[:=#]?\s*[\[(]?\s*"
    r"(\d+)(?![\w.])",
    re.IGNORECASE,
)
_LOSS = re.compile(
    r"(?<![\w/.-])(?:(?:avg|mean|average)[ _])?(?:(?:train|training|lm|total|batch|step|ce|nll)[ _/.-]?)?loss"
    r"\s*[:=]?\s*" + _NUMBER,
    re.IGNORECASE,
)
_GRAD_NORM = re.compile(r"(?<![a-z])(?:grad(?:ient)?[ _]?norm|gnorm|norm)\s*[:=]?\s*" + _NUMBER, re.IGNORECASE)
_BAR = re.compile(r"(?<!\d)(\d{1,12})/(\d{1,12}) \[([^][]*)\]")
_EPOCH = re.compile(r"(?<!\w)epoch\s?(\d{1,9})(?!\d)", re.IGNORECASE)
_IN_BAR = re.compile(r"(?<![\w/.-])(?:train(?:ing)?[_/.-])?loss(?:_step)?=" + _NUMBER, re.IGNORECASE)
_SHORT = re.compile(r"^s:(\d+) trl:" + _NUMBER, re.IGNORECASE)
_SHORTEST = re.compile(r"^(\d+) train " + _NUMBER + r"\s*$", re.IGNORECASE)


def parse(line: str) -> dict[str, Any] | None:
    """Return step, loss and, if it is there, the gradient norm of a line; None if it has no step with its loss."""
    short = _SHORT.match(line) or _SHORTEST.match(line)
    if short is not None:
        return _row(short.group(1), short.group(2), line)
    if "loss" not in line.lower():
        return None
    if (bar := _BAR.search(line)) is not None and (found := _IN_BAR.search(bar.group(3))) is not None:
        epoch = _EPOCH.search(line, 0, bar.start())
        before = int(epoch.group(1)) * int(bar.group(2)) if epoch is not None else 0
        return _row(str(before + int(bar.group(1))), found.group(1), bar.group(3))
    if _EVALUATION.search(line):
        return None
    # Each run of spaces becomes one: the patterns could divide a long one up in very many ways.
    line = " ".join(line.split())
    step, loss = _STEP.search(line), _LOSS.search(line)
    if step is None or loss is None:
        return None
    return _row(step.group(1), loss.group(1), line)


def _row(step: str, loss: str, line: str) -> dict[str, Any]:
    norm = _GRAD_NORM.search(line)
    return {"step": step, "loss": loss} | ({} if norm is None else {"grad_norm": norm.group(1)})

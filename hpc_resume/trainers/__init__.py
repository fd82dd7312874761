"""The adapters to training frameworks; they hold no rules, and no other package imports torch's ecosystem for training.

`causal_lm` is the built-in trainer. It stands on `token_blocks` (text to fixed samples), `model` (what is trained),
`engine` (DeepSpeed, through accelerate) and `export` (the finished weights).
"""

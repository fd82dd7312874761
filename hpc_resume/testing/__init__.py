"""For your tests: does a training that is interrupted come out as if it had not been, to the last bit?

    from hpc_resume.config.load import load_config
    from hpc_resume.testing import Interruption, assert_exact

    def test_an_interrupted_run_equals_the_undisturbed_one(tmp_path):
        config = load_config(Path("tiny.yaml"), ["training.steps=12", "checkpoints.interval_steps=2"])
        assert_exact(config, tmp_path, [Interruption("stop", 4), Interruption("kill", 7), Interruption("reload", 10)])

That trains the config twice, once undisturbed, and compares every step of every rank: loss, learning rate, weights,
optimizer state, random generators and samples. The supervisor, the journal and the checkpoints are the real ones. With
`trainer="my_package.my_module:train"` it is your own loop that is put to the test; that takes the arguments that
`hpc_resume.trainers.causal_lm.train_causal_lm` takes. Whatever state of yours is not in the checkpoint, or draws from a
generator that is not, shows as the first step that differs.

This package starts processes; nothing of the toolkit imports it.
"""

from hpc_resume.testing.comparison import Comparison, compare, compare_runs
from hpc_resume.testing.exactness import CAUSAL_LM, Interruption, assert_exact, train

__all__ = ["CAUSAL_LM", "Comparison", "Interruption", "assert_exact", "compare", "compare_runs", "train"]

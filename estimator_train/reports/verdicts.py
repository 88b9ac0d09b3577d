"""What limits the speed of a training: the verdicts in reports, and the texts that explain them."""

from typing import NamedTuple

INPUT_BOUND, COMPUTE_BOUND, OVERHEAD_BOUND = 'input-bound', 'compute-bound', 'overhead-bound'


class VerdictTexts(NamedTuple):
  """The texts of a verdict.

  Attributes:
    benchmark: the template of the sentence that `--mode=input_benchmark` prints. It has places for
      the higher one of the rates of input and model, the ratio of the two rates, and the lower one.
  """
  log: str
  page: str
  benchmark: str = ''


TEXTS = {
    INPUT_BOUND: VerdictTexts(
        'steps wait for input',
        'The input pipeline is slower than the model, so training waits for it.',
        'the model can process {} images/sec, {} times the rate of the input ({})'),
    COMPUTE_BOUND: VerdictTexts(
        'steps wait for computation', 'Training is limited by the computation of the model.',
        'the input delivers {} images/sec, {} times the rate of the model ({})'),
    OVERHEAD_BOUND: VerdictTexts(
        'most of the time passes between steps', 'Most of the time passes between steps.')}

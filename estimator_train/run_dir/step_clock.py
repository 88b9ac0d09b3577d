"""Converts between steps, examples and epochs of a run whose batch size may have changed."""

import math
from fractions import Fraction
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple

BatchSizes = Tuple[Tuple[int, int], ...]


class StepClock(NamedTuple):
  """Computes how many examples a run has used up to a step, and in which epoch the step is.

  Epoch E is complete when E times as many examples have been used as the data set has. A step may
  use examples of two epochs.

  Attributes:
    batch_sizes: pairs (first global step, examples per step), ordered by step. The first is step 0.
    num_examples: the number of examples per epoch; None if the data set has no end.
  """
  batch_sizes: BatchSizes
  num_examples: Optional[int] = None

  def resume_at(self, step: int, examples_per_step: int) -> 'StepClock':
    """Returns the clock of a run that resumes at a global step, perhaps with another batch size.

    Batch sizes of later steps are dropped, because the run repeats the steps after its checkpoint.
    """
    sizes = tuple(size for size in self.batch_sizes if size[0] < step)
    if not sizes or sizes[-1][1] != examples_per_step:
      sizes += ((step, examples_per_step),)
    return self._replace(batch_sizes=sizes)

  def examples_at(self, step: int) -> int:
    """Returns the number of examples of all steps up to a global step."""
    return int(count_examples(self.batch_sizes, step))

  def step_at_epoch(self, epochs: float) -> int:
    """Returns the global step that completes a number of epochs.

    Args:
      epochs: the number of epochs. A float stands for the decimal number that Python prints: 0.1
        is exactly 1/10.
    """
    assert self.num_examples is not None
    examples = Fraction(str(epochs)) * self.num_examples
    begin, examples_per_step = next(
        size for size in reversed(self.batch_sizes)
        if self.examples_at(size[0]) < examples or size == self.batch_sizes[0])
    return begin + math.ceil((examples - self.examples_at(begin)) / examples_per_step)

  def completed_epochs(self, step: int) -> int:
    """Returns the number of epochs that are complete at a global step."""
    assert self.num_examples is not None
    return self.examples_at(step) // self.num_examples

  def epoch_at(self, step: int) -> int:
    """Returns the number of the epoch in which a step is, counted from 1.

    A step that completes epoch E is in epoch E, even if it uses examples of epoch E + 1.
    """
    completed = self.completed_epochs(step)
    return completed if completed and self.step_at_epoch(completed) == step else completed + 1


def count_examples(batch_sizes: Sequence[Tuple[int, int]], step: Any,
                   minimum: Callable[..., Any] = min, maximum: Callable[..., Any] = max) -> Any:
  """Returns the number of examples of all steps up to a global step.

  Args:
    batch_sizes: see StepClock.
    step: the global step; a tensor if `minimum` and `maximum` are functions of tensors.
  """
  ends = [begin for begin, _ in batch_sizes[1:]] + [math.inf]
  return sum(maximum(minimum(step, end) - begin, 0) * examples
             for (begin, examples), end in zip(batch_sizes, ends))

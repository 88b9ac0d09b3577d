"""Converts between steps, examples and epochs of a run whose batch size may have changed."""

import math
from fractions import Fraction
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

BatchSizes = Tuple[Tuple[int, int], ...]


class StepClock(NamedTuple):
  """Computes how many examples a run has used up to a step, and in which epoch the step is.

  Epoch E is complete when the number of used examples is E times the size of the data set. A step
  may use examples of two epochs.

  Attributes:
    batch_sizes: pairs (first global step, examples per step), ordered by step from step 0.
    num_examples: the number of examples per epoch; None if the data set is infinite.
  """
  batch_sizes: BatchSizes
  num_examples: Optional[int] = None

  def resume_at(self, step: int, examples_per_step: int) -> 'StepClock':
    """Returns the clock of a run that resumes at a global step, perhaps with another batch size.

    The batch sizes of later steps are removed, because the run repeats these steps.
    """
    batch_sizes = tuple((first_step, size) for first_step, size in self.batch_sizes
                        if first_step < step)
    if not batch_sizes or batch_sizes[-1][1] != examples_per_step:
      batch_sizes += ((step, examples_per_step),)
    return self._replace(batch_sizes=batch_sizes)

  def examples_at(self, step: int) -> int:
    """Returns the number of examples of all steps up to a global step."""
    return int(count_examples(self.batch_sizes, step))

  def step_at_epoch(self, epochs: float) -> int:
    """Returns the global step that completes a number of epochs.

    Args:
      epochs: a float stands for the decimal number that Python prints: 0.1 is exactly 1/10.
    """
    assert self.num_examples is not None
    examples = Fraction(str(epochs)) * self.num_examples
    first_step, examples_per_step = next(
        pair for pair in reversed(self.batch_sizes)
        if self.examples_at(pair[0]) < examples or pair == self.batch_sizes[0])
    return first_step + math.ceil((examples - self.examples_at(first_step)) / examples_per_step)

  def completed_epochs(self, step: int) -> int:
    assert self.num_examples is not None
    return self.examples_at(step) // self.num_examples

  def epoch_at(self, step: int) -> int:
    """Returns the number of the epoch in which a step is, from 1.

    A step that completes epoch E is in epoch E, even if it uses examples of epoch E + 1.
    """
    completed = self.completed_epochs(step)
    return completed if completed and self.step_at_epoch(completed) == step else completed + 1

  def epoch_curve(self, last_step: int) -> List[Tuple[int, float]]:
    """Returns (global step, epochs completed at it) of the points between which a line is exact.

    The last point is at `last_step`. If the data set is infinite, there are no points.
    """
    steps = [first_step for first_step, _ in self.batch_sizes if first_step < last_step]
    return [(step, self.examples_at(step) / self.num_examples)
            for step in [*steps, last_step]] if self.num_examples else []


def count_examples(batch_sizes: Sequence[Tuple[int, int]], step: Any,
                   minimum: Callable[..., Any] = min, maximum: Callable[..., Any] = max) -> Any:
  """Returns the number of examples of all steps up to a global step.

  Args:
    batch_sizes: see StepClock.
    step: the global step; a tensor if `minimum` and `maximum` are functions of tensors.
  """
  end_steps = [first_step for first_step, _ in batch_sizes[1:]] + [math.inf]
  return sum(maximum(minimum(step, end_step) - first_step, 0) * examples_per_step
             for (first_step, examples_per_step), end_step in zip(batch_sizes, end_steps))

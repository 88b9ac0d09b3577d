"""Figures of a training as the log and the progress bar show them."""

import math

from estimator_train.settings import steps_for_epochs


def unless_nan(text: str, value: float) -> str:
  """Returns the text with the value in it, or nothing where there is no value."""
  return '' if math.isnan(value) else text.format(value)


def duration(secs: float) -> str:
  """Returns a duration as 42 s, 3:05 or 2:03:05."""
  if secs < 60:
    return '{:.0f} s'.format(secs)
  minutes, seconds = divmod(round(secs), 60)
  hours, minutes = divmod(minutes, 60)
  return '{}:{:02}:{:02}'.format(hours, minutes, seconds) if hours else '{}:{:02}'.format(
      minutes, seconds)


def epochs_of(step: int, num_examples: int, examples_per_step: int) -> int:
  """Returns how many epochs so many steps are, counting one that has begun.

  Training for E epochs ends with the step that completes epoch E: the examples that this step takes
  from the next epoch do not count.
  """
  completed = step * examples_per_step // num_examples
  is_exact = completed and steps_for_epochs(completed, num_examples, examples_per_step) == step
  return completed if is_exact else completed + 1

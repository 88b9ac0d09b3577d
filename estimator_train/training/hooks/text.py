"""Formats times, epochs and metrics of a training run for the log and the progress bar."""

import math

from estimator_train.settings import steps_for_epochs


def format_unless_nan(template: str, value: float) -> str:
  """Returns the template, formatted with the value, or '' if the value is nan."""
  return '' if math.isnan(value) else template.format(value)


def format_duration(secs: float) -> str:
  """Formats a duration as `42 s`, `3:05` or `2:03:05`."""
  if secs < 60:
    return '{:.0f} s'.format(secs)
  minutes, seconds = divmod(round(secs), 60)
  hours, minutes = divmod(minutes, 60)
  return '{}:{:02}:{:02}'.format(hours, minutes, seconds) if hours else '{}:{:02}'.format(
      minutes, seconds)


def count_epochs(step: int, num_examples: int, examples_per_step: int) -> int:
  """Returns the number of epochs that the steps up to `step` have begun.

  Training for E epochs ends with the step that completes epoch E. This step does not begin epoch
  E + 1, even if the step takes examples from epoch E + 1.
  """
  completed = step * examples_per_step // num_examples
  ends_epoch = completed and steps_for_epochs(completed, num_examples, examples_per_step) == step
  return completed if ends_epoch else completed + 1

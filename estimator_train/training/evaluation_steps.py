"""Computes after which steps of a training run a checkpoint is evaluated."""

import math
from typing import NamedTuple, Optional

from estimator_train.errors import UserError
from estimator_train.run_dir.step_clock import StepClock
from estimator_train.settings import Settings


class EvaluationSteps(NamedTuple):
  """The steps after which a checkpoint is evaluated, in addition to the last step of the run.

  They depend only on the global step and on the batch sizes of all steps. A resumed run therefore
  evaluates after the same steps as a run without a break.

  Attributes:
    every_epochs: the number of epochs between evaluations; None if there is none.
    every_steps: the number of steps between evaluations; None if there is none.
  """
  clock: StepClock
  every_epochs: Optional[int] = None
  every_steps: Optional[int] = None

  def count_until(self, step: int) -> int:
    """Returns the number of evaluations that are due up to a global step."""
    if self.every_steps is not None:
      return step // self.every_steps
    if self.every_epochs is not None:
      return self.clock.completed_epochs(step) // self.every_epochs
    return 0

  def next_after(self, step: int) -> float:
    """Returns the first step after a global step that is evaluated; infinity if there is none."""
    number = self.count_until(step) + 1
    if self.every_steps is not None:
      return number * self.every_steps
    if self.every_epochs is not None:
      return self.clock.step_at_epoch(number * self.every_epochs)
    return math.inf


def plan_evaluations(settings: Settings, clock: StepClock) -> EvaluationSteps:
  """Returns the steps of a run that are evaluated. The default is each epoch.

  Raises:
    UserError: a flag is given in epochs although the data set is infinite, or the run may stop
      early although it evaluates only at its end.
  """
  flags, is_infinite = settings.evaluation, clock.num_examples is None
  for name in ('eval_every', 'early_stopping'):
    epochs = getattr(flags, name + '_epochs')
    if epochs and is_infinite:
      raise UserError('an infinite data set has no epochs', '--dataset={} --{}_epochs={}'.format(
          settings.data.dataset, name, epochs), 'give --{}_steps instead'.format(name))
  every_epochs = flags.eval_every_epochs
  if every_epochs is None and flags.eval_every_steps is None and not is_infinite:
    every_epochs = 1
  steps = EvaluationSteps(clock, every_epochs or None, flags.eval_every_steps)
  if flags.may_stop_training and steps.next_after(0) == math.inf:
    raise UserError('only a run that evaluates before its end can stop early',
                    '--dataset={} is infinite'.format(settings.data.dataset),
                    'give --eval_every_steps=N')
  return steps

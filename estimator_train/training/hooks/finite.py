"""Hooks that end a training run whose loss, or whose weights to save, are not finite."""

import collections
import logging
import math
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import TrainingFailed
from estimator_train.training.hooks.batch_metrics import BatchMetrics
from estimator_train.training.hooks.step_counter import StepCounter, read_global_step
from estimator_train.training.schedules import Schedule

_LOG = logging.getLogger('estimator_train')
_NUM_LOSSES_KEPT = 5
# The most skipped steps in a row. Dynamic loss scaling reaches a scale of 1 after 16 of them, so
# that the cause of more is not the scale.
MAX_SKIPPED = 100


class StopAtNonFiniteLoss(tf.train.SessionRunHook):
  """Raises TrainingFailed at the first loss that is not finite.

  Args:
    counter: the step counter.
    metrics: has the loss of the step.
    skips: whether loss scaling skips the update of such a step, so that only MAX_SKIPPED of them in
      a row end the run.
    schedule: the learning rate schedule; None: unknown.

  Attributes:
    loss: the last finite loss, the mean over the global batch of its step; None before the first.
  """

  def __init__(self, counter: StepCounter, metrics: BatchMetrics, skips: bool = False,
               schedule: Optional[Schedule] = None) -> None:
    self._counter, self._metrics = counter, metrics
    self._failed_step = 0
    self._max_in_a_row = MAX_SKIPPED if skips else 1
    self._schedule = schedule
    self._in_a_row = 0
    self._last: Deque[Tuple[int, float]] = collections.deque(maxlen=_NUM_LOSSES_KEPT)

  @property
  def loss(self) -> Optional[float]:
    return self._last[-1][1] if self._last else None

  @property
  def loss_history(self) -> str:
    """Returns what preceded a failure: the last finite losses, and the learning rate."""
    losses = ', '.join('{:.6g} at step {}'.format(loss, step) for step, loss in self._last)
    rate = "the model's own" if self._schedule is None else '{:g}'.format(
        self._schedule.rate_at(max((self._failed_step or self._counter.step) - 1, 0)))
    return 'the last finite losses: {}; learning rate {}'.format(losses or 'none', rate)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    loss = float(self._metrics.loss)
    if math.isfinite(loss):
      self._in_a_row = 0
      self._last.append((self._counter.step, loss))
      return
    # Other workers may have incremented the global step too.
    self._failed_step = read_global_step(run_context.session)
    self._in_a_row += 1
    if self._in_a_row >= self._max_in_a_row:
      raise TrainingFailed('the loss is {} at step {}{}'.format(
          loss, self._failed_step, ', the {}th such step in a row'.format(self._in_a_row)
          if self._max_in_a_row > 1 else ''))
    _LOG.warning('the loss is %s at step %d: loss scaling skips an update whose gradients are not '
                 'finite (--on_nan=skip)', loss, self._failed_step)


class CheckWeightsFinite(tf.train.CheckpointSaverListener):
  """Raises TrainingFailed before a checkpoint with weights that are not finite is saved.

  The loss of a step is computed before the update of the weights, so it may still be finite.

  Args:
    variables: returns the variables that are saved.
  """

  def __init__(self, variables: Callable[[], List[Any]]) -> None:
    self._variables = variables
    self._finite_at_start: Optional[List[str]] = None

  def begin(self) -> None:
    self._is_finite: Dict[str, tf.Tensor] = {}
    for variable in self._variables():
      copy = variable.values[0] if hasattr(variable, 'values') else variable
      if copy.dtype.base_dtype.is_floating:
        self._is_finite[variable.op.name] = tf.reduce_all(tf.is_finite(copy.read_value()))

  def before_save(self, session: tf.Session, global_step_value: int) -> None:
    is_finite = session.run(self._is_finite)
    if self._finite_at_start is None:  # Variables such as a mask may contain -inf from the start.
      self._finite_at_start = [name for name, finite in is_finite.items() if finite]
    bad = sorted(name for name in self._finite_at_start if not is_finite[name])
    if bad:
      raise TrainingFailed('the weights are not finite after step {} ({}{})'.format(
          global_step_value, bad[0],
          ' and {} others'.format(len(bad) - 1) if len(bad) > 1 else ''))

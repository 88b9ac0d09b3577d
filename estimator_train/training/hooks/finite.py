"""Whether a training is still sound: its loss, and the weights that are saved, must be finite."""

import collections
import logging
import math
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import TrainingFailed
from estimator_train.training.hooks import summaries
from estimator_train.training.hooks.step_counter import StepCounter, read_global_step
from estimator_train.training.schedules import Schedule

_LOG = logging.getLogger('estimator_train')
_REMEMBERED = 5
# Dynamic loss scaling is down at a scale of 1 after 16 of them: it is not the scale then.
MAX_SKIPPED = 100


class StopAtNonFiniteLoss(tf.train.SessionRunHook):
  """Ends the run by TrainingFailed at the first loss that is not finite.

  Args:
    counter: counts the steps.
    skips: whether loss scaling leaves out such a step, so that many in a row are what ends it.
    schedule: the learning rate; None: it is not known.

  Attributes:
    loss: the last finite one, the mean over its step's global batch; None before the first.
  """

  def __init__(self, counter: StepCounter, skips: bool = False,
               schedule: Optional[Schedule] = None) -> None:
    self._counter = counter
    self._failed_step = 0
    self._most = MAX_SKIPPED if skips else 1
    self._schedule = schedule
    self._in_a_row = 0
    self._last: Deque[Tuple[int, float]] = collections.deque(maxlen=_REMEMBERED)

  @property
  def loss(self) -> Optional[float]:
    return self._last[-1][1] if self._last else None

  @property
  def course(self) -> str:
    """What led to a failure: the last finite losses, and the learning rate of the step."""
    losses = ', '.join('{:.6g} at step {}'.format(loss, step) for step, loss in self._last)
    rate = "the model's own" if self._schedule is None else '{:g}'.format(
        self._schedule.rate_at(max((self._failed_step or self._counter.step) - 1, 0)))
    return 'the last finite losses: {}; learning rate {}'.format(losses or 'none', rate)

  def begin(self) -> None:
    self._fetch = tf.train.SessionRunArgs(summaries.training_loss())

  def before_run(self, run_context: Any) -> tf.train.SessionRunArgs:
    return self._fetch

  def after_run(self, run_context: Any, run_values: Any) -> None:
    loss = float(run_values.results)
    if math.isfinite(loss):
      self._in_a_row = 0
      self._last.append((self._counter.step, loss))
      return
    # Other workers may have taken steps of their own.
    self._failed_step = read_global_step(run_context.session)
    self._in_a_row += 1
    if self._in_a_row >= self._most:
      raise TrainingFailed('the loss is {} at step {}{}'.format(
          loss, self._failed_step,
          ', the {}th such step in a row'.format(self._in_a_row) if self._most > 1 else ''))
    _LOG.warning('the loss is %s at step %d: loss scaling leaves out an update whose gradients '
                 'are not finite (--on_nan=skip)', loss, self._failed_step)


class KeepFinite(tf.train.CheckpointSaverListener):
  """Raises TrainingFailed rather than have weights saved that are not finite any more.

  The loss of a step is that of the weights before its update, so it may be finite still.

  Args:
    variables: returns those that are saved.
  """

  def __init__(self, variables: Callable[[], List[Any]]) -> None:
    self._variables = variables
    self._watched: Optional[List[str]] = None

  def begin(self) -> None:
    self._is_finite: Dict[str, tf.Tensor] = {}
    for variable in self._variables():
      one = variable.values[0] if hasattr(variable, 'values') else variable
      if one.dtype.base_dtype.is_floating:
        self._is_finite[variable.op.name] = tf.reduce_all(tf.is_finite(one.read_value()))

  def before_save(self, session: tf.Session, global_step_value: int) -> None:
    is_finite = session.run(self._is_finite)
    if self._watched is None:  # The first is of what the run began with; a mask may hold -inf.
      self._watched = [name for name, is_so in is_finite.items() if is_so]
    bad = sorted(name for name in self._watched if not is_finite[name])
    if bad:
      raise TrainingFailed('the weights are not finite after step {} ({}{})'.format(
          global_step_value, bad[0],
          ' and {} others'.format(len(bad) - 1) if len(bad) > 1 else ''))

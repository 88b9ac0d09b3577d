"""Hooks that end a training run when its loss, or a weight to be saved, is not finite."""

import collections
import logging
import math
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import NonFiniteLoss, TrainingFailed
from estimator_train.tf_patches import checkpoints
from estimator_train.tf_patches.sessions import read_global_step
from estimator_train.training.hooks.steps import BatchMetrics, StepCounter
from estimator_train.training.optimizers import Schedule

_LOG = logging.getLogger('estimator_train')
_NUM_LOSSES_KEPT = 5
# With loss scaling, a run ends after this many consecutive steps whose loss is not finite. A loss
# scale that is too large cannot cause so many steps, because each such step halves the scale, down
# to 1.
MAX_SKIPPED_STEPS = 100


class StopAtNonFiniteLoss(tf.train.SessionRunHook):
  """Raises NonFiniteLoss at the first loss that is not finite.

  Args:
    counter: the step counter.
    metrics: provides the loss of the last step.
    skips_updates: whether loss scaling skips the update of a step whose loss is not finite. If so,
      the run ends only after MAX_SKIPPED_STEPS such steps in a row.
    schedule: the learning rate schedule, or None if the rate is unknown.

  Attributes:
    last_finite_loss: the loss of the last step whose loss was finite, a mean over the global batch;
      None if there was no such step.
  """

  def __init__(self, counter: StepCounter, metrics: BatchMetrics, skips_updates: bool = False,
               schedule: Optional[Schedule] = None) -> None:
    self._counter, self._metrics = counter, metrics
    self._schedule = schedule
    self._max_non_finite_steps = MAX_SKIPPED_STEPS if skips_updates else 1
    # The number of consecutive steps, up to the last step, whose loss is not finite.
    self._num_non_finite_steps = 0
    self._non_finite_step = 0  # The global step of the last such step; 0 after a finite loss.
    self._finite_losses: Deque[Tuple[int, float]] = collections.deque(maxlen=_NUM_LOSSES_KEPT)

  @property
  def last_finite_loss(self) -> Optional[float]:
    return self._finite_losses[-1][1] if self._finite_losses else None

  @property
  def loss_history(self) -> str:
    """Returns the last finite losses and the learning rate as text, for the error message.

    In an asynchronous cluster, the step of a finite loss is the global step at the start of the
    session plus the number of steps of this process, see StepCounter.step_of_process.
    """
    losses = ', '.join('{:.6g} at step {}'.format(loss, step)
                       for step, loss in self._finite_losses)
    rate = 'set by the model' if self._schedule is None else '{:g}'.format(
        self._schedule.rate_at(
            max((self._non_finite_step or self._counter.step_of_process) - 1, 0)))
    return 'the last finite losses: {}; learning rate {}'.format(losses or 'none', rate)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    loss = float(self._metrics.loss)
    if math.isfinite(loss):
      self._num_non_finite_steps = self._non_finite_step = 0
      self._finite_losses.append((self._counter.step_of_process, loss))
      return
    # The counter may not include the latest steps of other workers, so the variable is read.
    self._non_finite_step = read_global_step(run_context.session)
    self._num_non_finite_steps += 1
    if self._num_non_finite_steps >= self._max_non_finite_steps:
      suffix = ', the {}th such step in a row'.format(self._num_non_finite_steps)
      raise NonFiniteLoss('the loss is {} at step {}{}'.format(
          loss, self._non_finite_step, suffix if self._max_non_finite_steps > 1 else ''))
    _LOG.warning('the loss is %s at step %d: loss scaling skips an update whose gradients are not '
                 'finite (--on_nan=skip)', loss, self._non_finite_step)


class CheckWeightsFinite(tf.train.CheckpointSaverListener):
  """Raises TrainingFailed instead of saving a checkpoint whose weights are not finite.

  StopAtNonFiniteLoss is not enough, because a step computes the loss before it updates the weights.

  Args:
    variables: a function that returns the variables of the checkpoint.
  """

  def __init__(self, variables: Callable[[], List[Any]]) -> None:
    self._variables = variables
    self._finite_at_start: Optional[List[str]] = None

  def begin(self) -> None:
    self._is_finite: Dict[str, tf.Tensor] = {}
    axes: Dict[Optional[int], tf.Tensor] = {}  # By rank.
    for variable in self._variables():
      # Of a variable that has a copy on each replica, the first copy is checked.
      copy = variable.values[0] if hasattr(variable, 'values') else variable
      if copy.dtype.base_dtype.is_floating:
        is_finite = tf.raw_ops.IsFinite(x=tf.convert_to_tensor(copy))
        # tf.reduce_all would make the axes for each variable, and takes longer to make its
        # operations.
        rank = is_finite.shape.ndims
        if rank not in axes:
          axes[rank] = tf.range(tf.rank(is_finite))
        self._is_finite[checkpoints.variable_name(variable)] = tf.raw_ops.All(
            input=is_finite, axis=axes[rank])

  def before_save(self, session: tf.Session, global_step_value: int) -> None:
    is_finite = session.run(self._is_finite)
    # A variable that is not finite at the first save, such as a mask of -inf, is not checked later.
    if self._finite_at_start is None:
      self._finite_at_start = [name for name, finite in is_finite.items() if finite]
    not_finite = sorted(name for name in self._finite_at_start if not is_finite[name])
    if not_finite:
      raise TrainingFailed('the weights are not finite after step {} ({}{})'.format(
          global_step_value, not_finite[0],
          ' and {} others'.format(len(not_finite) - 1) if len(not_finite) > 1 else ''))

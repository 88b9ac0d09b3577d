"""`--mode=lr_finder`: finds a learning rate by training while the rate increases exponentially.

This is the learning rate range test of Smith 2017, arXiv:1506.01186, section 3.3. The loss hardly
changes at rates that are too low, decreases at useful rates, and increases at rates that are too
high.
"""

import logging
import math
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data.source import translate_errors
from estimator_train.errors import UserError
from estimator_train.model.schedules import Exponential
from estimator_train.reports import page, report_files
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings, to_training_arguments
from estimator_train.settings.proposals import make_command
from estimator_train.system.formatting import format_number
from estimator_train.system.summary import log_summary
from estimator_train.tf_patches import estimator as estimator_patches
from estimator_train.training.preparation import PreparedModel, build_model, convert_model
from estimator_train.training.progress import ShowProgress
from estimator_train.training.run import Run, open_temporary_run
from estimator_train.training.steps import StepMonitor
from estimator_train.training.trainer import make_run_input_fn

_LOG = logging.getLogger('estimator_train')
_LOWEST_RATE, _HIGHEST_RATE = 1e-7, 10.
_DEFAULT_STEPS = 100
# The moving average and the regression extend over these fractions of all steps, and thus over the
# same range of learning rates for any number of steps.
_SMOOTHED_FRACTION, _FITTED_FRACTION = 0.1, 0.12
_MAX_LOSS_RATIO = 4


def run(settings: Settings, run_dir: RunDir) -> Dict[str, Any]:
  """Returns the result of the mode: the suggested learning rate, and the loss at each rate."""
  run_dir.make()
  with open_temporary_run(settings, settings.optimizer.learning_rate,
                          settings.duration.train_steps or _DEFAULT_STEPS) as opened:
    schedule = Exponential(_LOWEST_RATE, _HIGHEST_RATE, opened.end_step)
    run = opened._replace(schedule=schedule)
    model = convert_model(run, build_model(run))
    if model.schedule is None:
      raise UserError('a compiled model trains with its own learning rate',
                      '--mode=lr_finder --model=' + settings.model.model,
                      'return the model without compiling it')
    recorder = _train(run, model)
  points = [{'learning_rate': schedule.rate_at(step), 'loss': loss, 'smoothed_loss': smoothed}
            for step, (loss, smoothed) in enumerate(zip(recorder.losses, recorder.smoothed_losses))]
  result = {'mode': settings.run.mode, 'model_dir': settings.run.model_dir,
            **choose_rates(points, run.end_step), 'has_diverged': recorder.has_diverged,
            **run.conditions, 'optimizer': settings.optimizer.optimizer, 'points': points}
  report_files.write(run_dir.path, 'lr_finder', result)
  page_file = page.write_page_of_finished_run(run_dir.path, settings.reporting)
  learning_rate = result['learning_rate']
  if learning_rate is None:
    _LOG.warning('the loss did not decrease over %d steps: give more --train_steps', len(points))
  log_summary('tested the learning rates of {} steps'.format(len(points)), [
      ('suggested', learning_rate and (
          'learning rate {}, at which the loss decreases fastest'.format(
              format_number(learning_rate)))),
      ('too high', learning_rate and 'learning rate {}, at which the loss is smallest'.format(
          format_number(result['min_loss_rate']))),
      ('report', page_file), ('result', report_files.path_to(run_dir.path, 'lr_finder'))],
              learning_rate and make_command(*to_training_arguments(
                  settings, model_dir=None, learning_rate=float('{:.3g}'.format(learning_rate)))))
  return result


def _train(run: Run, model: PreparedModel) -> 'LossRecorder':
  monitor = StepMonitor()
  recorder, progress = LossRecorder(monitor, run.end_step), ShowProgress(run, model, monitor)
  try:
    with estimator_patches.without_nan_hook(), translate_errors(run.data.train):
      run.engine.train(model.training_estimator, make_run_input_fn(run, model),
                       [monitor, progress, recorder], run.end_step)
  finally:
    progress.close()
  return recorder


class LossRecorder(tf.train.SessionRunHook):
  """Records the loss of each step, and stops the training if the loss diverges.

  The loss diverges if it is not finite, or if the smoothed loss exceeds _MAX_LOSS_RATIO times its
  minimum.

  Args:
    num_steps: the number of steps of the whole range of learning rates.

  Attributes:
    losses: the loss of each step, a mean over the global batch, up to the last finite one.
    smoothed_losses: for each loss, the exponential moving average up to this loss. The average is
      divided by the sum of its weights, because the first averages would otherwise be too close
      to 0.
  """

  def __init__(self, monitor: StepMonitor, num_steps: int) -> None:
    self._monitor = monitor
    self._decay = max(1 - 1 / (_SMOOTHED_FRACTION * num_steps), 0.)
    self._average = 0.
    self.losses: List[float] = []
    self.smoothed_losses: List[float] = []
    self.has_diverged = False

  def after_run(self, run_context: Any, run_values: Any) -> None:
    loss = float(self._monitor.loss)
    self.has_diverged = not math.isfinite(loss)
    if not self.has_diverged:
      self._average = self._decay * self._average + (1 - self._decay) * loss
      self.losses.append(loss)
      self.smoothed_losses.append(self._average / (1 - self._decay ** len(self.losses)))
      lowest = min(self.smoothed_losses)
      # The loss can be negative, for example with a loss function of the user.
      self.has_diverged = (
          self.smoothed_losses[-1] - lowest > (_MAX_LOSS_RATIO - 1) * abs(lowest))
    if self.has_diverged:
      run_context.request_stop()


def choose_rates(points: Sequence[Dict[str, float]], num_steps: int) -> Dict[str, Optional[float]]:
  """Returns `learning_rate`, the suggested rate, and `min_loss_rate`, that of the smallest loss.

  At the suggested rate, the loss decreases fastest over the logarithm of the learning rate. Rates
  above that of the smallest loss are not suggested. The slope at a step comes from a linear
  regression over the losses of the neighboring steps on both sides. The smoothed loss is not used,
  because it is an average over previous steps, which is steepest at a rate that is too high.
  `learning_rate` is None if the loss does not decrease. Without points, both are None.

  Args:
    points: for each step, `learning_rate`, `loss` and `smoothed_loss`.
    num_steps: the number of steps of the whole range of learning rates.
  """
  rates = [point['learning_rate'] for point in points]
  losses = [point['loss'] for point in points]
  min_loss_step = int(np.argmin([point['smoothed_loss'] for point in points])) if points else 0
  half_width = max(round(_FITTED_FRACTION * num_steps / 2), 1)
  slopes = {step: np.polyfit(range(2 * half_width + 1),
                             losses[step - half_width:step + half_width + 1], 1)[0]
            for step in range(half_width, min(len(points) - half_width, min_loss_step + 1))}
  steepest_step = min(slopes, key=lambda step: slopes[step], default=None)
  return {'learning_rate': None if steepest_step is None else rates[steepest_step],
          'min_loss_rate': rates[min_loss_step] if points else None}

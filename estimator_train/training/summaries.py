"""Writes TensorBoard summaries of a training run: scalars, the first batch and hyperparameters.

The hook WriteSummaries fetches the tensors of model/observation.py only at the steps whose
summaries it writes, so that other steps need not compute them. Estimator's own summaries are not
used, because in a cluster they contain collective operations, which all workers would have to run
in the same steps.
"""

import logging
import math
from typing import Any, Dict, Optional

import numpy as np
import tensorflow.compat.v1 as tf
from tensorboard.plugins.hparams import api_pb2 as hparams_api, summary as hparams

from estimator_train.model import observation
from estimator_train.model.schedules import Schedule
from estimator_train.reports import TRAIN_BATCH_FILE
from estimator_train.tf_patches import estimator as estimator_patches
from estimator_train.training.run import Run
from estimator_train.training.steps import StepMonitor, WindowRecorder, is_logged

_LOG = logging.getLogger('estimator_train')
# Each of the first 500 steps is a point of the loss curve. Of the later steps, only those are
# points for which is_logged returns True. Writing a point takes 30 microseconds, which would slow
# down a small model in a long run.
_NUM_STEPS_BEFORE_THINNING = 500
# The columns of TensorBoard's HParams table: settings, and metrics as (folder, tag).
_STRING_HPARAMS = ('dataset', 'image_size', 'preprocess', 'model', 'weights', 'optimizer',
                   'scale_learning_rate', 'class_weights', 'distribution_strategy')
_NUMERIC_HPARAMS = ('trainable_layers', 'train_steps', 'train_epochs', 'batch_size',
                    'learning_rate', 'base_batch_size', 'lr_warmup_epochs', 'seed')
_HPARAMS_METRICS = (('eval', 'accuracy'), ('eval', 'average_loss'), ('', 'loss'),
                    ('', 'examples_per_sec'))


def write_scalars(model_dir: str, scalars: Dict[str, float], step: int) -> None:
  """Writes scalars, a dict from tag to value, for a global step; omits those that are nan."""
  _add_scalars(model_dir, scalars, step)
  _get_writer(model_dir).flush()  # Without it, TensorBoard would show the scalars minutes later.


def _add_scalars(model_dir: str, scalars: Dict[str, float], step: int) -> None:
  """Adds scalars to the writer, which writes them at the next flush."""
  _get_writer(model_dir).add_summary(tf.Summary(value=[
      tf.Summary.Value(tag=tag, simple_value=value) for tag, value in sorted(scalars.items())
      if not math.isnan(value)]), step)


def _get_writer(model_dir: str) -> tf.summary.FileWriter:
  """Returns the writer that the Estimator uses for its own summaries."""
  return tf.summary.FileWriterCache.get(model_dir)


class WriteSummaries(tf.train.SessionRunHook):
  """Writes the curves of loss, accuracy and learning rate, and the tensors of observation.py.

  The points of loss and accuracy are means over the steps since the previous point. A point of the
  learning rate is the rate of its step. The tensors are written at logged steps, and at the first
  and the last step.

  All workers of a cluster need this hook, and must fetch the tensors at the same steps, because
  fetching runs collective operations. Evaluations use the same tags, `loss` and `accuracy`, so that
  TensorBoard shows training and evaluation in the same charts.
  """

  def __init__(self, run: Run, schedule: Optional[Schedule], monitor: StepMonitor) -> None:
    self._run, self._schedule, self._monitor = run, schedule, monitor
    self._window_recorder = WindowRecorder(monitor)
    self._event_dir = run.event_dir  # None if this process only fetches the tensors.

  def begin(self) -> None:
    estimator_patches.remove_loss_summary(observation.training_loss())
    scalars = observation.scalars_of_logged_steps()
    examples = observation.example_images_and_labels()
    # The steps always fetch all of these tensors, because TensorFlow prunes the graph again for
    # each new set of fetches.
    self._run_args = tf.train.SessionRunArgs((scalars, examples))

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._window_recorder.start()
    if self._event_dir is not None:
      writer = _get_writer(self._event_dir)
      # TensorBoard then discards what a killed run has written for the steps that this run repeats.
      writer.add_session_log(
          tf.SessionLog(status=tf.SessionLog.START), self._monitor.start_step + 1)
      writer.add_summary(hparams.session_start_pb({
          name: value for name, value in self._run.settings.items()
          if name in _STRING_HPARAMS + _NUMERIC_HPARAMS and value is not None}))
      writer.add_summary(_make_hparams_experiment())

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    # In synchronous training, local_step is the same on all workers, so they all fetch the tensors
    # at the same steps.
    step = self._monitor.local_step + 1
    if step in (self._monitor.start_step + 1, self._run.end_step) or (
        is_logged(step, self._run.settings.reporting.log_every_steps)):
      return self._run_args
    return None

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if self._event_dir is None:
      return
    self._window_recorder.add_step()
    is_point = is_logged(self._monitor.local_step, num_before_thinning=_NUM_STEPS_BEFORE_THINNING)
    if is_point or run_values.results is not None:
      self._monitor.update_global_step(run_context.session)
    if is_point:
      self._write_point()
    if run_values.results is not None:
      scalars, examples = run_values.results
      write_scalars(self._event_dir, scalars, self._monitor.global_step)
      if examples and self._monitor.local_step == 1:  # A resumed run writes no images.
        self._write_train_batch(*examples)

  def _write_point(self) -> None:
    window = self._window_recorder.close_window()
    if self._event_dir is not None and not math.isnan(window.loss):
      scalars = {'loss': window.loss, 'accuracy': window.accuracy}
      if self._schedule is not None:
        scalars['learning_rate'] = self._schedule.rate_at(window.last_step - 1)
      _add_scalars(self._event_dir, scalars, window.last_step)

  def end(self, session: tf.Session) -> None:
    self._write_point()
    if self._monitor.local_step >= self._run.end_step:
      self._write_run_status(hparams_api.STATUS_SUCCESS)

  def record_failure(self) -> None:
    """Marks the run as failed in TensorBoard's HParams table."""
    self._write_point()
    self._write_run_status(hparams_api.STATUS_FAILURE)

  def _write_run_status(self, status: int) -> None:
    """Writes how the run ended to TensorBoard's HParams table, which calls a run a session."""
    if self._event_dir is not None:
      _get_writer(self._event_dir).add_summary(hparams.session_end_pb(status))
      _get_writer(self._event_dir).flush()

  def _write_train_batch(self, images: np.ndarray, labels: np.ndarray) -> None:
    """Draws the first training batch for the report page and for TensorBoard, in 10 to 70 ms."""
    from estimator_train.reports import train_batch  # On demand, so that the program starts fast.

    spec = self._run.data.spec
    # Other features can have the rank of images, and a number of channels that the graph lacks.
    if self._event_dir is None or spec.image_shape is None or images.shape[-1] not in (1, 3):
      return
    try:
      picture = train_batch.write_train_batch(self._event_dir, spec.labels, images, labels)
    except OSError as error:  # Training does not need the file.
      _LOG.warning('%s could not be written: %s', TRAIN_BATCH_FILE, error)
      return
    _get_writer(self._event_dir).add_summary(tf.Summary(value=[tf.Summary.Value(
        tag='train_batch', image=tf.Summary.Image(
            width=picture.width, height=picture.height, colorspace=4,
            encoded_image_string=picture.png))]), 1)


def _make_hparams_experiment() -> tf.Summary:
  """Makes the columns of the HParams table, which has no evaluation metrics by default."""
  columns = [(name, hparams_api.DATA_TYPE_STRING) for name in _STRING_HPARAMS] + [
      (name, hparams_api.DATA_TYPE_FLOAT64) for name in _NUMERIC_HPARAMS]
  return hparams.experiment_pb(
      [hparams_api.HParamInfo(name=name, type=data_type) for name, data_type in columns],
      [hparams_api.MetricInfo(name=hparams_api.MetricName(group=folder, tag=tag))
       for folder, tag in _HPARAMS_METRICS])

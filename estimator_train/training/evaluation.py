"""Evaluates checkpoints on all test examples, promotes the best one, and finds reasons to stop."""

import contextlib
import ctypes
import logging
import math
import os
import time
from typing import Any, Callable, ContextManager, Dict, Optional, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import best_checkpoint, finding, restoring
from estimator_train.checkpoints.pinned_files import pin_verified_checkpoint
from estimator_train.checkpoints.saving import SaveListener
from estimator_train.data.opening import make_eval_input_fn
from estimator_train.data.source import InputFn, translate_errors
from estimator_train.errors import TrainingFailed, UserError, one_line
from estimator_train.model import (
  confusion_matrix,
  evaluation_metrics,
  evaluation_samples,
  score_histogram,
)
from estimator_train.model.evaluation_samples import EvaluationSamples, SampleCollector
from estimator_train.run_dir import read_checkpoint_list
from estimator_train.system import progress, watchdog
from estimator_train.system.signals import SignalState
from estimator_train.training import selection
from estimator_train.training.preparation import PreparedModel
from estimator_train.training.run import Run
from estimator_train.training.selection import StopReason

_LOG = logging.getLogger('estimator_train')
_POLL_SECS = 1.

# Takes the return values of Evaluator.evaluate, writes the reports, and returns the main metrics.
WriteReports = Callable[[Dict[str, Any], EvaluationSamples], Dict[str, Any]]


class EvaluationStopped(Exception):
  """An evaluation was interrupted before it had read all examples."""


class EvaluationLoop:
  """Evaluates the checkpoints of a training run, and promotes the best one.

  Args:
    write_reports: called after each evaluation.
    is_stop_requested: called before each batch; True interrupts the evaluation.
  """

  def __init__(self, run: Run, model: PreparedModel, write_reports: WriteReports,
               is_stop_requested: Callable[[], bool]) -> None:
    assert run.data.test is not None
    self._run_dir, self._flags, self._test = run.run_dir, run.settings.evaluation, run.data.test
    self._first_step, self._best_metric = run.start.step, model.best_metric
    self._clock = run.clock
    self._evaluator = Evaluator(run, model, is_stop_requested)
    self._write_reports = write_reports
    self._pinning_task_type = None if run.process.is_chief else run.process.role
    self._last_result: Dict[str, Any] = {}
    self._stop_reason: Optional[StopReason] = None

  def evaluate(self, checkpoint: Optional[str] = None) -> Dict[str, Any]:
    """Evaluates a checkpoint, unless the last evaluation was of the same checkpoint.

    Args:
      checkpoint: the path; None for the latest checkpoint.

    Returns:
      The result of the evaluation, in which `best` is the best checkpoint so far; {} if a signal
      interrupted the evaluation.
    """
    checkpoint = checkpoint or finding.find_latest_checkpoint_and_step(self._run_dir.path)[0]
    assert checkpoint is not None
    if self._last_result.get('checkpoint') == checkpoint:
      return self._last_result
    # The pin keeps the chief from deleting the checkpoint while the evaluator task reads it.
    pinned_path = best_checkpoint.pin_for_evaluation(checkpoint, self._run_dir.path,
                                                     self._pinning_task_type)
    try:
      self._reevaluate_best_if_examples_changed()
      metrics, samples = self._evaluator.evaluate(pinned_path)
    except EvaluationStopped:
      _LOG.info('the evaluation of %s was interrupted; the same command repeats it',
                checkpoint)
      return {}
    metrics['checkpoint'] = checkpoint
    self._evaluator.write_summary()
    self._last_result = self._write_reports(metrics, samples)
    best = best_checkpoint.promote_if_better(
        pinned_path, metrics['global_step'], best_checkpoint.select_metric_values(metrics),
        self._best_metric, self._run_dir.path, metrics['examples_digest'])
    self._last_result['best'] = best.as_result()
    self._stop_reason = selection.find_stop_reason(self._flags, metrics, self._best_metric, best,
                                                   self._clock)
    if self._stop_reason is not None:
      selection.write_stop_reason(self._run_dir, self._flags, self._stop_reason,
                                  metrics['examples_digest'])
    return self._last_result

  def _reevaluate_best_if_examples_changed(self) -> None:
    best = best_checkpoint.read_best(self._run_dir.path)
    examples_digest = self._test.content_digest()
    if best is None or best.examples_digest == examples_digest:
      return
    _LOG.warning(
        '%s: evaluating the best checkpoint, of step %d, again; early stopping counts from step %d',
        'it is unknown on which examples the best checkpoint was evaluated'
        if best.examples_digest is None else 'the test examples are others than before',
        best.global_step, self._first_step)
    # If no values can be computed, the next evaluated checkpoint becomes the best one.
    values: Dict[str, Optional[float]] = {}
    with contextlib.ExitStack() as stack:
      try:  # Another task may replace the best checkpoint at any time.
        readable_path = pin_verified_checkpoint(best.path, best.global_step, stack).readable_path
      except (OSError, ValueError) as error:
        _LOG.warning('%s cannot be evaluated again: %s', best.path, one_line(str(error)))
      else:
        values = best_checkpoint.select_metric_values(self._evaluator.evaluate(readable_path)[0])
    best_checkpoint.update_metrics(best, values, self._best_metric, self._run_dir.path,
                                   examples_digest, self._first_step)

  def evaluate_and_find_stop_reason(self) -> Optional[StopReason]:
    """Evaluates the latest checkpoint; returns the reason to stop the training, or None."""
    return self._stop_reason if self.evaluate() else None

  def evaluate_new_checkpoints(self, last_step: int) -> Dict[str, Any]:
    """Evaluates the checkpoints that another process saves, up to the one of the last step.

    Returns the result of the last evaluation.
    """
    result: Dict[str, Any] = {'global_step': -1}
    evaluated: Set[str] = set()
    while result['global_step'] < last_step:
      latest, *others = read_checkpoint_list(self._run_dir.path) or ['']
      new_paths = [path for path in [*others, latest]
                   if path not in evaluated and os.path.exists(path + '.index')]
      if not new_paths:
        time.sleep(_POLL_SECS)
        continue
      evaluated.add(new_paths[0])
      try:
        result = self.evaluate(new_paths[0])
      except FileNotFoundError:
        _LOG.warning('%s was deleted before it could be evaluated', new_paths[0])
    return result


class EvaluateAfterSave(SaveListener):
  """Evaluates the first checkpoint after each step at which an evaluation is due.

  The last checkpoint of the run is evaluated after the training, not by this class.

  Args:
    record_pause: takes the kind of a pause, and returns a context manager that records it.
  """

  def __init__(self, run: Run, evaluation_loop: EvaluationLoop, signals: SignalState,
               record_pause: Callable[[str], ContextManager[None]]) -> None:
    assert run.evaluation_steps is not None
    self._evaluation_steps = run.evaluation_steps
    self._peers, self._end_step = run.peers, run.end_step
    self._evaluation_loop, self._signals = evaluation_loop, signals
    self._record_pause = record_pause
    self._requests_stop = False
    start_step, best = run.start.step, best_checkpoint.read_best(run.run_dir.path)
    if best is None or best.last_evaluated_step != start_step:
      start_step = max(start_step - 1, 0)  # The start step itself may not have been evaluated.
    self._num_evaluations = self._evaluation_steps.count_until(start_step)

  def next_step_after(self, step: int) -> float:
    return self._evaluation_steps.next_after(step)

  def after_save(self, step: int) -> bool:
    """Evaluates the checkpoint if an evaluation is due; returns whether to stop the training."""
    # With parameter servers, other workers also increment the global step, so the checkpoint may be
    # of a later step than the one at which the evaluation is due.
    num_due = self._evaluation_steps.count_until(step)
    if num_due > self._num_evaluations and step < self._end_step:
      self._num_evaluations = num_due
      # After a signal to any task, the checkpoint is not evaluated now, but by the resumed run.
      is_stopped_by_peer = (self._peers.stop_step is not None
                            and not self._requests_stop)
      if self._signals.stop_signum is None and not is_stopped_by_peer:
        with self._record_pause('evaluation'), self._peers.announce_activity('evaluating'):
          stop_reason = self._evaluation_loop.evaluate_and_find_stop_reason()
        if stop_reason is not None:
          _LOG.info('stopping: %s', stop_reason.text)
          self._requests_stop = True
    return self._requests_stop


def warn_of_inaccurate_batch_norm(model: PreparedModel, result: Dict[str, Any]) -> None:
  """Warns if an evaluation is bad and few steps have updated the averages of batch normalization.

  Args:
    result: includes `global_step`, `train_loss`, and the `average_loss` of the evaluation.
  """
  initial_fraction = model.batch_norm_momentum ** result['global_step']
  if initial_fraction > .1 and (
      result.get('average_loss', 0.) > 1.5 * (result['train_loss'] or math.inf)):
    _LOG.warning('the evaluation is far worse than the training, perhaps because the averages of '
                 'batch normalization still contain %.0f%% of their initial values after %d steps: '
                 'train more steps, or lower the momentum (%g)', 100 * initial_fraction,
                 result['global_step'], model.batch_norm_momentum)


class Evaluator:
  """Evaluates checkpoints of a run on all test examples.

  Args:
    is_stop_requested: called before each batch; True interrupts the evaluation.
  """

  def __init__(self, run: Run, model: PreparedModel,
               is_stop_requested: Callable[[], bool] = lambda: False) -> None:
    self._run, self._model = run, model
    self._is_stop_requested = is_stop_requested
    self._graph: Optional[_EvaluationGraph] = None
    self._num_batches = 0  # The number of batches in all evaluations.
    self._last_metrics: Dict[str, Any] = {}

  def evaluate(self, checkpoint: str) -> Tuple[Dict[str, Any], EvaluationSamples]:
    """Evaluates the checkpoint at a path.

    Returns:
      The metrics, and some examples with the outputs of the model. The metrics include
      `average_loss`, `examples`, `examples_digest` (see Source.content_digest), `global_step`,
      `checkpoint` and the compiled metrics of the model. With classes, they also include
      `accuracy`, `class_counts` (lists by the attributes of ClassCounts), `calibration_bins`,
      and `confusion_matrix` or `confusions` (see evaluation_metrics.classifier_metrics). With two
      classes, they also include `score_counts`: for each bin of scores, its lowest score and its
      numbers of examples of both classes (see score_histogram.area_metrics). Without classes, they
      also include `loss`, the average loss plus the losses of the layers, such as weight decay.

    Raises:
      EvaluationStopped: the evaluation was interrupted.
      TrainingFailed: the loss is not finite.
      UserError: the input could not be read, or some examples were not evaluated.
    """
    source, batch_size = self._run.data.test, self._run.engine.examples_per_replica
    assert source is not None

    num_earlier_batches = self._num_batches

    def count_batch_and_check_stop() -> bool:
      bar.advance_to((self._num_batches - num_earlier_batches) * batch_size)
      self._num_batches += 1  # The watchdog reads this number.
      return self._is_stop_requested()

    with progress.make_bar('evaluating', source.num_examples, 'examples', is_shown=(
        progress.is_on_terminal())) as bar, translate_errors(source), watchdog.end_if_hanging(
        'evaluation', self._run.settings.cluster.step_timeout_secs, lambda: self._num_batches):
      if self._graph is None or self._graph.names_of_averages != (
          restoring.map_weights_to_averages(checkpoint)):  # --ema_decay may have changed.
        self._graph = _EvaluationGraph(self._model.estimator, make_eval_input_fn(
            source, self._run.settings, self._model.one_hot, batch_size), checkpoint)
      samples = SampleCollector(self._graph.sampled_tensors, source.num_examples, batch_size,
                                source.identify_example)
      metrics = self._graph.evaluate(checkpoint, samples, count_batch_and_check_stop)
    _release_free_memory()
    if source.num_examples not in (None, metrics['examples']):
      raise UserError('the evaluation did not read all examples',
                      '{} of {}'.format(metrics['examples'], source.num_examples),
                      'check whether the files were changed during the evaluation, and the '
                      'num_examples of a split of your own')
    if not math.isfinite(metrics['average_loss']):
      raise TrainingFailed('the loss of the test examples is {} at step {} ({})'.format(
          metrics['average_loss'], metrics['global_step'], checkpoint))
    self._last_metrics = metrics
    return dict(self._convert_metrics(metrics), checkpoint=checkpoint,
                examples_digest=source.content_digest()), samples.samples

  def write_summary(self, folder: Optional[str] = None) -> None:
    """Writes the scalar metrics of the last evaluation for TensorBoard, as Estimator does.

    Args:
      folder: the folder of the event file; None for the evaluation folder of the run.
    """
    folder = folder or self._model.estimator.eval_dir()
    # If TensorFlow made the folder, only its owner could write to it, because it ignores the umask.
    os.makedirs(folder, exist_ok=True)
    assert self._graph is not None
    # A new writer also writes the default graph to its file, so this must be the evaluation graph.
    with self._graph.session.graph.as_default():
      writer = tf.summary.FileWriterCache.get(folder)
    writer.add_summary(
        tf.Summary(value=[tf.Summary.Value(tag=name, simple_value=float(value))
                          for name, value in self._last_metrics.items()
                          if name != tf.GraphKeys.GLOBAL_STEP and value.ndim == 0]),
        int(self._last_metrics[tf.GraphKeys.GLOBAL_STEP]))
    writer.flush()

  def _convert_metrics(self, metrics: Dict[str, Any]) -> Dict[str, Any]:
    """Converts arrays to Python numbers and lists, in the order of evaluation.json."""
    # JSON has no nan. The precision without any positive prediction, for example, is nan.
    scalars = {name: float(value) if math.isfinite(value) else None
               for name, value in sorted(metrics.items())
               if value.ndim == 0 and name not in ('loss', 'examples', tf.GraphKeys.GLOBAL_STEP)}
    average_loss = float(metrics['average_loss'])
    has_classes = 'class_counts' in metrics
    result: Dict[str, Any] = (
        {'accuracy': scalars.pop('accuracy')} if has_classes else
        {'loss': average_loss + (scalars.get('regularization_loss') or 0.)})
    result.update({'average_loss': average_loss, 'examples': int(metrics['examples']), **scalars})
    if has_classes:
      result['class_counts'] = confusion_matrix.ClassCounts(
          *metrics['class_counts'].tolist())._asdict()
      result.update({name: metrics[name].tolist()
                     for name in ('calibration_bins', 'confusion_matrix', 'confusions')
                     if np.ndim(metrics.get(name, 0)) == 2})
      if 'score_counts' in metrics:
        result['score_counts'] = [score_histogram.bin_thresholds(), *metrics['score_counts']]
    assert self._graph is not None
    if self._graph.batch_mean_names:
      result['batch_means'] = self._graph.batch_mean_names
    return dict(result, global_step=int(metrics['global_step']))


class _EvaluationGraph:
  """An evaluation graph and its session, reused for all checkpoints.

  `Estimator.evaluate` builds a new graph and session for each checkpoint. Building takes longer
  than evaluating a small model, and old graphs stay in memory until Python's cycle collector runs.

  Args:
    input_fn: yields each test example once.
    checkpoint: the path of a checkpoint. All checkpoints to evaluate must have averages of the same
      weights.

  Attributes:
    names_of_averages: the names of the averages of weights in the checkpoint.
  """

  def __init__(self, estimator: tf.estimator.Estimator, input_fn: InputFn,
               checkpoint: str) -> None:
    with tf.Graph().as_default() as graph:
      tf.set_random_seed(estimator.config.tf_random_seed)
      global_step = tf.train.create_global_step()
      with tf.device('/cpu:0'):
        iterator = tf.data.make_initializable_iterator(input_fn())
        features, labels = iterator.get_next()
      spec = estimator.model_fn(features, labels, tf.estimator.ModeKeys.EVAL, estimator.config)
      metrics = dict(spec.eval_metric_ops, loss=tf.metrics.mean(spec.loss))
      self._update_op = tf.group(*[update for _, update in metrics.values()])
      self._metric_values = {name: value for name, (value, _) in metrics.items()}
      self._metric_values.update(confusion_matrix.recorded_counts())
      self._metric_values[tf.GraphKeys.GLOBAL_STEP] = global_step
      self._initialize_op = tf.group(tf.local_variables_initializer(), tf.tables_initializer(),
                                     iterator.initializer)
      self._saver = restoring.make_saver(tf.global_variables(), checkpoint)
      self.names_of_averages = restoring.map_weights_to_averages(checkpoint)
      self.sampled_tensors = evaluation_samples.take_sampled_tensors()
      self.batch_mean_names = sorted(evaluation_metrics.batch_mean_names())
      for name in self.batch_mean_names:
        _LOG.warning('%s is computed once per batch: its mean over the batches is exact only if it '
                     'is a mean over the examples of a batch', name)
      graph.finalize()
    self.session = tf.Session(graph=graph, config=estimator.config.session_config)

  def evaluate(self, checkpoint: str, samples: SampleCollector,
               is_stop_requested: Callable[[], bool]) -> Dict[str, Any]:
    """Evaluates a checkpoint, and returns `global_step` and the metrics over all examples."""
    session = self.session
    self._saver.restore(session, checkpoint)
    session.run(self._initialize_op)
    while True:
      if is_stop_requested():
        raise EvaluationStopped
      try:
        _, values = session.run([self._update_op, samples.tensors_to_fetch()],
                                samples.values_to_feed())
      except tf.errors.OutOfRangeError:
        break
      samples.add_batch(values)
    metrics: Dict[str, Any] = session.run(self._metric_values)
    return metrics


def _release_free_memory() -> None:
  """Returns freed memory to the system, because glibc would keep it for each thread."""
  with contextlib.suppress(OSError, AttributeError):  # Only glibc has malloc_trim.
    ctypes.CDLL(None).malloc_trim(0)

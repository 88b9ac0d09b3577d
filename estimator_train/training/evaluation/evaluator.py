"""Evaluates checkpoints, one after another, in a graph that is built only once."""

import contextlib
import ctypes
import logging
import math
import os
from typing import Any, Callable, Dict, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.data.data import make_batching
from estimator_train.data.source import InputFn, translate_errors
from estimator_train.errors import TrainingFailed, UserError
from estimator_train.training.checkpoints import save_hook
from estimator_train.training.evaluation import metrics as evaluation_metrics
from estimator_train.training.evaluation.sample_predictions import (
  EvaluationSamples,
  SamplePredictionsHook,
)
from estimator_train.training.model import Model
from estimator_train.training.run import Run

_LOG = logging.getLogger('estimator_train')


class EvaluationStopped(Exception):
  """The evaluation was interrupted before it had read all examples."""


class Evaluator:
  """Evaluates checkpoints of a run on all test examples.

  Args:
    run: the run, which provides the settings, the data and the devices.
    model: the model to evaluate.
    is_stop_requested: a function that is called before each batch. If it returns True, the
      evaluation is interrupted.
  """

  def __init__(self, run: Run, model: Model,
               is_stop_requested: Callable[[], bool] = lambda: False) -> None:
    self._run, self._model = run, model
    self._is_stop_requested = is_stop_requested
    self._graph: Optional[_EvaluationGraph] = None

  def evaluate(self, path: Optional[str] = None) -> Tuple[Dict[str, Any], EvaluationSamples]:
    """Evaluates a checkpoint.

    Args:
      path: the path of the checkpoint, or None for the latest one.

    Returns:
      A tuple of the metrics and of some examples with the outputs of the model. The metrics are
      `average_loss`, `examples`, `global_step`, `checkpoint` and the compiled metrics of the model;
      with classes, also `accuracy` and `confusion_matrix`; without classes, also `loss`, which
      includes the losses of the layers, such as weight decay.

    Raises:
      EvaluationStopped: the evaluation was interrupted.
      TrainingFailed: the loss is not finite.
      UserError: the input could not be read, or some examples were not evaluated.
    """
    source, batch_size = self._run.data.test, self._run.engine.examples_per_replica
    assert source is not None
    estimator = self._model.estimator
    path = path or save_hook.latest_checkpoint_and_step(estimator.model_dir)[0]
    assert path is not None
    sample_hook = SamplePredictionsHook(source.num_examples, batch_size)
    with translate_errors(source):
      if self._graph is None:
        self._graph = _EvaluationGraph(estimator, source.make_eval_input_fn(make_batching(
            source.dataset, self._run.settings, self._model.one_hot, batch_size)))
      metrics = self._graph.run(path, sample_hook, self._is_stop_requested)
    _release_free_memory()
    if source.num_examples not in (None, metrics['examples']):
      raise UserError('the evaluation did not read all examples',
                      '{} of {}'.format(metrics['examples'], source.num_examples),
                      'check whether the files were changed during the evaluation, and the '
                      'num_examples of a split of your own')
    if not math.isfinite(metrics['average_loss']):
      raise TrainingFailed('the loss of the test examples is {} at step {} ({})'.format(
          metrics['average_loss'], metrics['global_step'], path))
    self._graph.write_summary(estimator.eval_dir(), metrics)
    return self._as_result(metrics, path), sample_hook.samples

  def _as_result(self, metrics: Dict[str, Any], path: str) -> Dict[str, Any]:
    """Returns the metrics as Python numbers, first those that all evaluations have."""
    scalars = {name: float(value) for name, value in metrics.items()
               if value.ndim == 0 and name not in ('loss', 'examples', tf.GraphKeys.GLOBAL_STEP)}
    result: Dict[str, Any] = {}
    if 'confusion_matrix' in metrics:
      result['accuracy'] = scalars.pop('accuracy')
    else:
      result['loss'] = scalars['average_loss'] + scalars.get('regularization_loss', 0.)
    result['average_loss'] = scalars.pop('average_loss')
    result['examples'] = int(metrics['examples'])
    # JSON has no nan, which a metric such as the precision of no predictions can be.
    result.update((name, value if math.isfinite(value) else None)
                  for name, value in sorted(scalars.items()))
    if 'confusion_matrix' in metrics:
      result['confusion_matrix'] = metrics['confusion_matrix'].tolist()
    assert self._graph is not None
    if self._graph.batch_means:
      result['batch_means'] = self._graph.batch_means
    return dict(result, global_step=int(metrics['global_step']), checkpoint=path)


class _EvaluationGraph:
  """An evaluation graph and its session, reused for all checkpoints.

  `Estimator.evaluate` builds a new graph and session for each checkpoint. Building takes longer
  than evaluating a small model, and old graphs stay in memory until Python's cycle collector runs.

  Args:
    estimator: the estimator that provides the model_fn and the configuration.
    input_fn: the input function, which yields each test example once.

  Attributes:
    batch_means: the names of the metrics that are means over batches; see metrics.batch_means.
  """

  def __init__(self, estimator: tf.estimator.Estimator, input_fn: InputFn) -> None:
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
      self._metric_values[tf.GraphKeys.GLOBAL_STEP] = global_step
      self._initialize_op = tf.group(tf.local_variables_initializer(), tf.tables_initializer(),
                                     iterator.initializer)
      self._saver = tf.train.Saver(sharded=True)
      self.batch_means = sorted(evaluation_metrics.batch_means())
      for name in self.batch_means:
        _LOG.warning('%s is computed once per batch: its mean over the batches is exact only if it '
                     'is a mean over the examples of a batch', name)
      graph.finalize()
    self._session = tf.Session(graph=graph, config=estimator.config.session_config)

  def run(self, checkpoint: str, sample_hook: SamplePredictionsHook,
          is_stop_requested: Callable[[], bool]) -> Dict[str, Any]:
    """Evaluates a checkpoint; returns a dict of `global_step` and the metrics over all examples."""
    session = self._session
    self._saver.restore(session, checkpoint)
    session.run(self._initialize_op)
    # A tf.Session calls no hooks, so this method calls the methods of the hook itself.
    with session.graph.as_default():
      sample_hook.begin()
    while True:
      if is_stop_requested():
        raise EvaluationStopped
      sample_args = sample_hook.before_run(None)
      try:
        _, results = session.run([self._update_op, sample_args.fetches if sample_args else []])
      except tf.errors.OutOfRangeError:
        break
      sample_hook.after_run(
          None, tf.train.SessionRunValues(results if sample_args else None, None, None))
    values: Dict[str, Any] = session.run(self._metric_values)
    return values

  def write_summary(self, folder: str, metrics: Dict[str, Any]) -> None:
    """Writes the scalar metrics for TensorBoard, as `Estimator.evaluate` does."""
    # TensorFlow ignores the umask, and would make a folder that only its owner can write to.
    os.makedirs(folder, exist_ok=True)
    with self._session.graph.as_default():  # A new writer writes the default graph to its file.
      writer = tf.summary.FileWriterCache.get(folder)
    writer.add_summary(
        tf.Summary(value=[tf.Summary.Value(tag=name, simple_value=float(value))
                          for name, value in metrics.items()
                          if name != tf.GraphKeys.GLOBAL_STEP and value.ndim == 0]),
        int(metrics[tf.GraphKeys.GLOBAL_STEP]))
    writer.flush()


def _release_free_memory() -> None:
  """Returns freed memory to the system; otherwise, glibc keeps such memory for each thread."""
  with contextlib.suppress(OSError, AttributeError):  # Only glibc has malloc_trim.
    ctypes.CDLL(None).malloc_trim(0)

"""`tf.estimator.Estimator`: its hooks, its loss, its server and its event file.

Line numbers refer to tensorflow_estimator/python/estimator/estimator.py, unless a file is named.
"""

import contextlib
from typing import Iterator

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator


@contextlib.contextmanager
def without_nan_hook() -> Iterator[None]:
  """Disables the hook of Estimator that ends the run when the loss is nan.

  Defect: lines 1380 and 1381 add a `NanTensorHook` to every training, which no setting disables.
  Symptom: a step that loss scaling skips ends the run; any other nan ends it with
  `NanLossDuringTrainingError`, which gives no step and no checkpoint.
  """
  kind = tf.train.NanTensorHook
  after_run = kind.after_run
  kind.after_run = lambda *given: None
  try:
    yield
  finally:
    kind.after_run = after_run


def keep_loss_unscaled(strategy: tf.distribute.Strategy) -> None:
  """Keeps `tf.train` optimizers from dividing the loss by the number of replicas.

  Defect: line 1244 makes them divide it (tensorflow_core/python/training/optimizer.py:522), but
  Keras's losses are divided by it already. Symptom: on N replicas their steps, and the loss in the
  log, are too small by the factor N.
  """
  strategy._scale_loss_for_estimator_enabled = _unscaled_loss  # pylint: disable=protected-access


@contextlib.contextmanager
def _unscaled_loss() -> Iterator[None]:
  yield


def release_server() -> None:
  """Releases TensorFlow's server of this process in a cluster, after `train_and_evaluate`.

  Defect: tensorflow_core/python/distribute/distribute_coordinator.py:450 keeps it in a thread-local
  variable forever. Symptom: at exit, Python destroys it after the modules that its `__del__` needs,
  and prints `Exception ignored in: <function Server.__del__`.
  """
  distribute_coordinator._thread_local.server = None


def open_event_file(model_dir: str) -> tf.summary.FileWriter:
  """Opens the event file before Estimator's hooks do, and returns its writer.

  Defect: a new `FileWriter` writes the default graph
  (tensorflow_core/python/summary/writer/writer_cache.py:62), and Estimator's hooks make it in
  `begin`, when the graph is not complete. Symptom: the event file starts with an incomplete graph,
  almost as large as the complete one, which TensorBoard may show.
  """
  with tf.Graph().as_default():
    return tf.summary.FileWriterCache.get(model_dir)


def remove_loss_summary(loss: tf.Tensor) -> None:
  """Removes Estimator's own summary of the loss from the default graph.

  Defect: lines 1375 to 1377 add one unless the name of the operation is exactly `loss`. Symptom:
  the event file contains the loss twice, once under a tag that evaluations do not use.
  """
  summaries = tf.get_collection_ref(tf.GraphKeys.SUMMARIES)
  summaries[:] = [summary for summary in summaries
                  if not any(tensor is loss for tensor in summary.op.inputs)]

"""`tf.estimator.Estimator`: its hooks, its loss, its server and its event file.

Lines are of tensorflow_estimator/python/estimator/estimator.py unless another file is named.
"""

import contextlib
from typing import Iterator

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator


@contextlib.contextmanager
def without_nan_hook() -> Iterator[None]:
  """Keeps quiet the hook that Estimator adds by itself, which ends the run at any nan.

  Defect: lines 1380 and 1381 add a `NanTensorHook` to every training, and no setting leaves it out.
  Symptom: a step that loss scaling leaves out ends the run; any other nan ends it with
  `NanLossDuringTrainingError`, which names no step and no checkpoint.
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

  Defect: line 1244 has them do so (tensorflow_core/python/training/optimizer.py:522), and Keras's
  losses have divided by it already. Symptom: on N replicas their steps are too short by the factor
  N, and so is the loss in the log.
  """
  strategy._scale_loss_for_estimator_enabled = _loss_as_it_is  # pylint: disable=protected-access


@contextlib.contextmanager
def _loss_as_it_is() -> Iterator[None]:
  yield


def release_server() -> None:
  """Lets go of the server of this process in a cluster, after `train_and_evaluate`.

  Defect: tensorflow_core/python/distribute/distribute_coordinator.py:450 keeps it in a thread-local
  variable for ever. Symptom: at the end of the process Python destroys it after the modules that
  its `__del__` needs, and prints `Exception ignored in: <function Server.__del__`.
  """
  distribute_coordinator._thread_local.server = None


def open_event_file(model_dir: str) -> tf.summary.FileWriter:
  """Opens TensorBoard's file, and returns its writer, before Estimator's hooks do.

  Defect: a `FileWriter` that is opened while there is a default graph writes that graph
  (tensorflow_core/python/summary/writer/writer_cache.py:62), and Estimator's hooks open it in
  `begin`, when the graph is not complete. Symptom: the event file begins with half a graph, as long
  as the whole one, which TensorBoard may show.
  """
  with tf.Graph().as_default():
    return tf.summary.FileWriterCache.get(model_dir)


def remove_loss_summary(loss: tf.Tensor) -> None:
  """Removes Estimator's own summary of the loss from the default graph.

  Defect: lines 1375 to 1377 add one unless an operation is called `loss` exactly. Symptom: the
  event file has the loss twice, once under a tag that evaluations do not have.
  """
  summaries = tf.get_collection_ref(tf.GraphKeys.SUMMARIES)
  summaries[:] = [summary for summary in summaries
                  if not any(tensor is loss for tensor in summary.op.inputs)]

"""Works around defects of `tf.estimator.Estimator`, and completes its RunConfig.

Line numbers refer to tensorflow_estimator/python/estimator/estimator.py, unless a file is named.
"""

import contextlib
from typing import Iterator, Optional

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator
from tensorflow_estimator.python.estimator import estimator


@contextlib.contextmanager
def without_nan_hook() -> Iterator[None]:
  """Disables the hook of Estimator that ends the run when the loss is nan.

  Defect: lines 1380 and 1381 always add a `NanTensorHook`, which no setting disables. Symptom: the
  run ends at a step that loss scaling would skip; without loss scaling, a nan ends the run with a
  `NanLossDuringTrainingError`, whose message names neither the step nor a checkpoint.
  """
  hook_class = tf.train.NanTensorHook
  after_run = hook_class.after_run
  hook_class.after_run = lambda *unused: None
  try:
    yield
  finally:
    hook_class.after_run = after_run


def keep_loss_unscaled() -> None:
  """Prevents a `tf.train` optimizer from dividing the loss by the number of replicas.

  Call this function in the model_fn, because Estimator enables the division just before calling the
  model_fn.

  Defect: line 1244 makes `tf.train` optimizers divide the loss
  (tensorflow_core/python/training/optimizer.py:522), although Keras has already divided the loss by
  the same number. Symptom: on N replicas, the gradients and the logged loss are too small by the
  factor N.
  """
  tf.distribute.get_strategy()._scale_loss_for_estimator = False  # pylint: disable=protected-access


def complete_config(config: Optional[tf.estimator.RunConfig],
                    model_dir: Optional[str]) -> tf.estimator.RunConfig:
  """Returns the RunConfig that an Estimator with these arguments uses.

  If neither argument names a folder, a temporary folder is made for the RunConfig. Not a workaround
  for a defect: this function uses the private name `maybe_overwrite_model_dir_and_session_config`
  (line 1784), because no public function combines the two arguments.

  Raises:
    ValueError: `model_dir` differs from the folder in `config`, or `config` is not a RunConfig.
  """
  return estimator.maybe_overwrite_model_dir_and_session_config(config, model_dir)


def release_server() -> None:
  """Releases the server that `train_and_evaluate` started for this process of a cluster.

  Defect: tensorflow_core/python/distribute/distribute_coordinator.py:450 keeps the server in a
  thread-local variable until the process exits. Python then destroys the server after
  the modules that `Server.__del__` needs. Symptom: Python prints `Exception ignored in: <function
  Server.__del__`.
  """
  distribute_coordinator._thread_local.server = None


def open_event_file(model_dir: str) -> tf.summary.FileWriter:
  """Opens the event file before Estimator's hooks do, and returns its writer.

  Defect: a new `FileWriter` writes the default graph
  (tensorflow_core/python/summary/writer/writer_cache.py:62), and Estimator's hooks make the writer
  in `begin`, when the graph is not complete. Symptom: the event file starts with an incomplete
  graph. This graph is almost as large as the complete graph, and TensorBoard may show the
  incomplete graph.
  """
  with tf.Graph().as_default():
    return tf.summary.FileWriterCache.get(model_dir)


def remove_loss_summary(loss: tf.Tensor) -> None:
  """Removes Estimator's own summary of the loss from the default graph.

  Defect: lines 1375 to 1377 add this summary unless there is a summary operation whose name is
  exactly `loss`. Symptom: the event file contains the training loss twice, once under a tag that
  evaluations do not use.
  """
  summaries = tf.get_collection_ref(tf.GraphKeys.SUMMARIES)
  summaries[:] = [summary for summary in summaries
                  if not any(tensor is loss for tensor in summary.op.inputs)]

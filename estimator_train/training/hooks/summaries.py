"""What TensorBoard gets of a training: values of the graph, example images, hyper-parameters.

The model's graph is where values are added; the hook fetches them at the steps that it writes. At
all others nothing is computed for them. Estimator's own summaries cannot do this: in a cluster they
hold collective operations, which all workers would have to run.
"""

from typing import Any, Dict, Optional, Sequence

import tensorflow.compat.v1 as tf
from tensorboard.plugins.hparams import api_pb2 as hparams_api, summary as hparams

from estimator_train.settings import Settings
from estimator_train.tf_patches import estimator as estimator_patches, model_to_estimator
from estimator_train.training.hooks import logged_steps
from estimator_train.training.hooks.step_counter import StepCounter, read_global_step

_SCALARS = 'estimator_train/scalars/'
_PIXELS, _TRUE = 'estimator_train/example_pixels', 'estimator_train/example_classes'
_MAX_EXAMPLES = 8
# Of the settings, those that TensorBoard compares runs by; and by which values, (folder, tag).
_WORDS = ('dataset', 'image_size', 'preprocess', 'model', 'weights', 'optimizer',
          'scale_learning_rate', 'class_weights', 'distribution_strategy')
_NUMBERS = ('trainable_layers', 'train_steps', 'train_epochs', 'batch_size', 'learning_rate',
            'base_batch_size', 'lr_warmup_epochs', 'seed')
_METRICS = (('eval', 'accuracy'), ('eval', 'average_loss'), ('', 'loss'), ('', 'examples_per_sec'))


def training_loss() -> tf.Tensor:
  """Returns the tensor of the training loss, the mean over the global batch."""
  return tf.get_collection(tf.GraphKeys.LOSSES)[-1]


def write_scalars(model_dir: str, scalars: Dict[str, float], step: int) -> None:
  """Has TensorBoard show values, by their tags, at a global step."""
  writer = _writer(model_dir)
  writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag=tag, simple_value=value)
                                       for tag, value in sorted(scalars.items())]), step)
  writer.flush()  # Otherwise they would be there minutes later.


def _writer(model_dir: str) -> tf.summary.FileWriter:
  """Returns the writer of the Estimator's own summaries."""
  return tf.summary.FileWriterCache.get(model_dir)


def add_scalar(tag: str, value: tf.Tensor) -> None:
  """Has a scalar written; where each replica adds one of this tag, that of the first is."""
  tf.add_to_collection(_SCALARS + tag, value)


def add_batch(features: tf.Tensor, labels: tf.Tensor, outputs: tf.Tensor) -> None:
  """Has the accuracy on the training batch written, as `accuracy`, and some of its images.

  To be called in each replica, when its model is built: random operations that come later in a
  graph draw other numbers.

  Args:
    features: this replica's images, uint8 or float32 [B, height, width, C] with grey levels from 0
      to 255; anything else, such as the output of frozen layers, is not shown.
    labels: one-hot [B, num_classes] or class numbers [B].
    outputs: of the model, [B, num_classes].
  """
  true = labels if labels.shape.ndims == 1 else tf.argmax(labels, -1)
  is_right = tf.equal(tf.cast(true, tf.int64), tf.argmax(outputs, -1))
  # As the loss is: the shares of the replicas are equal, so this is the mean over the batch.
  tf.distribute.get_replica_context().merge_call(
      lambda strategy, right: add_scalar(
          'accuracy', strategy.reduce(tf.distribute.ReduceOp.MEAN, right, axis=None)),
      args=(tf.reduce_mean(tf.cast(is_right, tf.float32)),))
  if features.shape.ndims == 4 and features.shape[-1].value in (1, 3):
    tf.add_to_collection(_PIXELS, features[:_MAX_EXAMPLES])
    tf.add_to_collection(_TRUE, true[:_MAX_EXAMPLES])


def record_gradient_norm(optimizer: Any) -> None:
  """Has the norm of the gradient over the global batch written, as `gradient_norm`.

  It is that of what the optimizer is given: without loss scaling, and clipped where the optimizer
  clips.

  Args:
    optimizer: of a compiled Keras model, Keras's or one of `tf.train`.
  """
  model_to_estimator.add_base_class(optimizer, _RecordsGradientNorm)


class _RecordsGradientNorm:
  """Makes a subclass of an optimizer that adds `gradient_norm`."""

  def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
    grads_and_vars = list(grads_and_vars)
    result = super().apply_gradients(grads_and_vars, *args, **kwargs)  # type: ignore[misc]
    # Not before: replicas wait for each other here, and dropout's masks go by what is built first.
    tf.distribute.get_replica_context().merge_call(
        _add_gradient_norm, args=([pair for pair in grads_and_vars if pair[0] is not None],))
    return result


def _add_gradient_norm(strategy: tf.distribute.Strategy, grads_and_vars: Any) -> None:
  # The optimizer adds them up likewise, but with mixed precision where nothing can be fetched.
  sums = [strategy.experimental_local_results(gradient)
          for gradient in strategy.extended.batch_reduce_to(
              tf.distribute.ReduceOp.SUM, grads_and_vars)]
  # A collective operation waits for that of each replica.
  with tf.control_dependencies([tf.convert_to_tensor(replica) for of_one in sums
                                for replica in of_one[1:]]):
    add_scalar('gradient_norm', tf.global_norm([tf.cast(of_one[0], tf.float32)
                                                for of_one in sums]))


class WriteSummaries(tf.train.SessionRunHook):
  """Writes what was added, and the loss, at the first and the last step and those that are logged.

  All workers of a cluster need it, with the same steps. The tags are those of the evaluation's
  event files where they mean the same: `loss` and `accuracy`.

  Args:
    counter: counts the steps.
    model_dir: of the run; None: of another task, which writes nothing.
    settings: of the run.
    stop_step: the global step to train up to.
    labels: the class names.
  """

  def __init__(self, counter: StepCounter, model_dir: Optional[str], settings: Settings,
               stop_step: int, labels: Sequence[str]) -> None:
    self._counter = counter
    self._model_dir = model_dir
    self._settings = settings
    self._stop_step = stop_step
    self._labels = labels

  def begin(self) -> None:
    loss = training_loss()
    estimator_patches.remove_loss_summary(loss)
    scalars = {key[len(_SCALARS):]: tf.get_collection(key)[0]
               for key in tf.get_default_graph().get_all_collection_keys()
               if str(key).startswith(_SCALARS)}
    examples = tf.get_collection(_PIXELS)[:1] + tf.get_collection(_TRUE)[:1]
    # Always the same tensors: TensorFlow prepares the graph anew for each set that is fetched.
    self._fetch = tf.train.SessionRunArgs((dict(scalars, loss=loss), examples))
    if examples:
      self._image = tf.placeholder(tf.float32, [None, None, None])
      self._png = tf.image.encode_png(tf.saturate_cast(tf.round(self._image), tf.uint8))

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    if self._model_dir is not None:
      # TensorBoard then forgets what a run that was killed had written of these steps.
      _writer(self._model_dir).add_session_log(
          tf.SessionLog(status=tf.SessionLog.START), self._counter.first_step + 1)
      _writer(self._model_dir).add_summary(
          hparams.session_start_pb(_hyperparameters(self._settings)))
      _writer(self._model_dir).add_summary(_experiment())

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    step = self._counter.step + 1
    if step in (self._counter.first_step + 1, self._stop_step) or (
        logged_steps.is_logged(step, self._settings.log_every_steps)):
      return self._fetch
    return None

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if run_values.results is None or self._model_dir is None:
      return
    scalars, examples = run_values.results
    # Other workers may have taken steps of their own.
    write_scalars(self._model_dir, scalars, read_global_step(run_context.session))
    if examples and self._counter.step == 1:
      self._write_images(run_context.session, *examples)

  def end(self, session: tf.Session) -> None:
    if self._counter.step >= self._stop_step:
      self._write_end(hparams_api.STATUS_SUCCESS)

  def fail(self) -> None:
    """Says that the training failed."""
    self._write_end(hparams_api.STATUS_FAILURE)

  def _write_end(self, status: int) -> None:
    if self._model_dir is not None:
      _writer(self._model_dir).add_summary(hparams.session_end_pb(status))
      _writer(self._model_dir).flush()

  def _write_images(self, session: tf.Session, pixels: Any, classes: Any) -> None:
    assert self._model_dir is not None
    summary = tf.Summary()
    for number, (image, label) in enumerate(zip(pixels, classes)):
      height, width, channels = image.shape
      summary.value.add(
          tag='examples/{} {}'.format(number, self._labels[int(label)]),
          image=tf.Summary.Image(
              height=height, width=width, colorspace=channels,
              encoded_image_string=session.run(self._png, {self._image: image})))
    _writer(self._model_dir).add_summary(summary, self._counter.step)


def _hyperparameters(settings: Settings) -> Dict[str, Any]:
  values = {name: getattr(settings, name) for name in _WORDS + _NUMBERS}
  return {name: value for name, value in values.items() if value is not None}


def _experiment() -> tf.Summary:
  """Returns which columns the table of runs has; without it those of the evaluation are missing."""
  columns = [(name, hparams_api.DATA_TYPE_STRING) for name in _WORDS] + [
      (name, hparams_api.DATA_TYPE_FLOAT64) for name in _NUMBERS]
  return hparams.experiment_pb(
      [hparams_api.HParamInfo(name=name, type=kind) for name, kind in columns],
      [hparams_api.MetricInfo(name=hparams_api.MetricName(group=folder, tag=tag))
       for folder, tag in _METRICS])

"""Restores the Keras model of a checkpoint, without the data and devices of the training."""

import contextlib
import copy
import logging
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import compatibility, finding, restoring
from estimator_train.checkpoints.pinned_files import ReadableCheckpoint
from estimator_train.data import DataSpec, opening
from estimator_train.data.source import Source, translate_errors
from estimator_train.distribution.devices import Devices, find_devices, make_session_config
from estimator_train.model import compiling, inputs, losses
from estimator_train.model.schedules import Schedule
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.tf_patches import compiled_models, graphs

_LOG = logging.getLogger('estimator_train')
_CPU_ONLY = Devices(('/cpu:0',), ('/cpu:0',))
# The placeholders that a prediction feeds, and its outputs by name.
InputsAndOutputs = Tuple[List[tf.Tensor], Dict[str, tf.Tensor]]
_FEATURES_PER_BATCH, _NUM_FEATURE_BATCHES = 16, 16
# The names of inputs and outputs. A picture has any size, and the export resizes and scales it. An
# image has the size and the pixel values that the model takes.
PICTURES_INPUT, TENSOR_INPUT, PROBABILITIES_OUTPUT = 'pictures', 'images', 'probabilities'


class RestoredModel:
  """A model in inference mode with the weights of a checkpoint.

  Attributes:
    keras_model: the model, in the graph of the session.
    session: the session that contains the weights.
    image_shape: (height, width, channels) of the model's images; None if the model takes no images.
    preprocess: scales pixel values for the model; the identity if the model takes no images.
    exports_take_pictures: whether exports take images of any size and preprocess them.
    inputs: the inputs by their names in exports. The input of an image model is `images`, and
      contains scaled pixel values. Other inputs have their names in the Keras model.
    outputs: with classes, only `probabilities`; otherwise all outputs by name.
    features_of_data: batches of features of the data set. Exports are verified with these and with
      random features.
  """

  def __init__(self, keras_model: tf.keras.Model, session: tf.Session, settings: Settings,
               spec: DataSpec, features_of_data: Sequence[Any] = ()) -> None:
    self.keras_model, self.session = keras_model, session
    self.settings, self.spec = settings, spec
    self.features_of_data = features_of_data
    self.image_shape = spec.image_shape and (
        spec.image_shape[:2] + (keras_model.input_shape[-1],))
    self.preprocess = compiling.choose_preprocess_function(keras_model, settings.model, spec)
    self.exports_take_pictures = spec.image_shape is not None and (
        settings.export.export_format != 'h5' and settings.export.export_input != 'tensor')
    input_names = keras_model.input_names if spec.image_shape is None else [TENSOR_INPUT]
    self.inputs = dict(zip(input_names, keras_model.inputs))
    self.outputs = self._name_outputs(keras_model.outputs)

  def make_outputs(self, features: Any) -> Dict[str, tf.Tensor]:
    """Returns the outputs for a batch, with the same names as the attribute `outputs`.

    Args:
      features: see inputs.split_sample_weights and BatchAdapter.arrange_features.
    """
    features, _ = inputs.split_sample_weights(features)
    model = self.keras_model
    names = compiled_models.fed_input_names(model)
    if isinstance(features, dict):
      features = {name: features[name] for name in names}
    # As in training, types are cast, and a tensor [B] is reshaped for an input [B, 1].
    fed_tensors = dict(zip(names, inputs.BatchAdapter(
        model, '--dataset=' + self.spec.name).arrange_features(features)))
    tensors = [fed_tensors.get(name, tensor)
               for name, tensor in zip(model.input_names, model.inputs)]
    outputs = model(tensors if len(tensors) > 1 else tensors[0])
    return self._name_outputs(outputs if isinstance(outputs, list) else [outputs])

  def with_picture_input(self, dtype: tf.DType) -> 'RestoredModel':
    """Returns a copy of this model that takes pictures of any size.

    The input of the copy is `pictures`, [B, any, any, C], with values from 0 to 255. It has as many
    channels as the model. The pictures are resized as in data/decoding.py.
    """
    assert self.image_shape is not None
    height, width, channels = self.image_shape
    pictures = tf.placeholder(dtype, [None, None, None, channels], PICTURES_INPUT)
    pixels = tf.image.resize_bilinear(tf.cast(pictures, tf.float32), (height, width))
    picture_model = copy.copy(self)
    picture_model.inputs = {PICTURES_INPUT: pictures}
    # `self.preprocess` would broadcast its result, which TensorFlow Lite does not support.
    picture_model.outputs = self.make_outputs(
        inputs.SCALE_FUNCTIONS[self.settings.model.preprocess](pixels))
    return picture_model

  def describe_inputs(self) -> Dict[str, Any]:
    """Describes what a client must know about the inputs of an exported model, as a JSON object.

    Returns:
      A dict with these keys. If the examples are not images, only `input` and `class_names`.
        input: 'pictures' if the export resizes and scales uint8 images itself, otherwise 'tensor'.
        size: [height, width] of the input of the network.
        resize: the method, with the conventions of TensorFlow 1.
        channel_order: 'RGB' or 'BGR' in the tensor; None unless there are three channels. Pictures
          are always RGB.
        mean, scale: lists with one number per channel. The tensor is (resized - mean) * scale.
        class_names: the class names in the order of the outputs.
    """
    description: Dict[str, Any] = {'input': 'pictures' if self.exports_take_pictures else 'tensor'}
    if self.image_shape is not None:
      height, width, channels = self.image_shape
      name = self.settings.model.preprocess
      mean, scale = (np.broadcast_to(values, channels).tolist()
                     for values in inputs.MEANS_AND_SCALES[name])
      order = None if channels != 3 else 'BGR' if name == 'caffe' else 'RGB'
      description.update(
          size=[height, width],
          resize={'method': 'bilinear', 'antialias': False, 'half_pixel_centers': False,
                  'align_corners': False},
          channel_order=order, mean=mean, scale=scale)
    return dict(description, class_names=list(self.spec.labels))

  def _name_outputs(self, outputs: Sequence[tf.Tensor]) -> Dict[str, tf.Tensor]:
    if self.spec.labels:
      return {PROBABILITIES_OUTPUT: losses.class_probabilities(self.keras_model, *outputs)}
    return dict(zip(self.keras_model.output_names, outputs))


class Predictor(NamedTuple):
  """A restored model as a function.

  Attributes:
    batch_size: the largest number of examples per call of `predict`.
    output_shapes: the shapes of the outputs for one example, by name.
    predict: takes a batch of each input, and returns a batch of each output, [B, ...], by name. See
      RestoredModel.outputs.
  """
  model: RestoredModel
  batch_size: int
  output_shapes: Dict[str, Sequence[Optional[int]]]
  predict: Callable[..., Dict[str, np.ndarray]]


class TrainedModel(NamedTuple):
  """A model in a checkpoint, which can be restored without the data of the training.

  Attributes:
    settings: the settings of the run that trained the model, except that `mode` may differ.
    spec: the class names and the image shape of the training.
  """
  settings: Settings
  run_dir: RunDir
  spec: DataSpec
  checkpoint: ReadableCheckpoint

  @contextlib.contextmanager
  def restore(self, source: Optional[Source] = None) -> Iterator[RestoredModel]:
    """Restores the model on the CPU. In the `with` block, its session and graph are the defaults.

    Args:
      source: an open source. Its first batches become `features_of_data` of the model.

    Raises:
      UserError: the checkpoint belongs to another model.
    """
    features = [] if source is None else _read_features(self.settings, source)
    with contextlib.ExitStack() as stack:
      session = stack.enter_context(_make_session(self.settings, _CPU_ONLY))
      stack.enter_context(tf.device('/cpu:0'))
      model = self._build_model(session)
      if graphs.requires_gpu(session.graph):  # Soft placement puts CuDNNLSTM on the GPU.
        devices = find_devices(self.settings.devices).first()
        session = stack.enter_context(tf.Session(
            graph=session.graph, config=make_session_config(self.settings.devices, devices)))
      yield self._restore_weights(model, session, features)

  @contextlib.contextmanager
  def open_predictor(self, build_prediction: Callable[[RestoredModel, int], InputsAndOutputs],
                     source: Optional[Source] = None) -> Iterator[Predictor]:
    """Restores the model as a function that can be called in the `with` block.

    Args:
      build_prediction: adds the operations of the prediction to the graph, and returns the
        placeholders to feed and the outputs. Its arguments are the restored model and the batch
        size.
      source: the source of the examples if the graph reads them. Errors in its examples are
        translated.

    Raises:
      UserError: the checkpoint belongs to another model.
    """
    # All GPUs (-1) of this machine are used, because --num_gpus applies to the machine of the
    # training, which may have another number of GPUs.
    devices = find_devices(self.settings.evolve(
        num_gpus=-1 if self.settings.devices.num_gpus else 0).devices)
    batch_size = max(1, self.settings.optimizer.batch_size // devices.num_replicas)
    device = devices.first()
    # The session is the default only while the graph is built, because other code runs between the
    # calls of `predict`.
    with contextlib.closing(_make_session(self.settings, device)) as session, \
        translate_errors(source):
      with session.graph.as_default(), session.as_default(), tf.device(device.names[0]):
        model = self._restore_weights(self._build_model(session), session)
        placeholders, outputs = build_prediction(model, batch_size)
        session.run(tf.tables_initializer())
        predict = session.make_callable(outputs, placeholders)
      _LOG.info('predicting with %s of step %d on %s, %d %s at a time', self.settings.model.model,
                self.checkpoint.global_step, device.names[0], batch_size,
                'examples' if self.spec.image_shape is None else 'images')
      yield Predictor(model, batch_size, {
          name: tensor.shape.as_list()[1:] for name, tensor in outputs.items()}, predict)

  def _build_model(self, session: tf.Session) -> tf.keras.Model:
    """Builds the model in the default graph, the graph of the session."""
    settings = self.settings
    tf.keras.backend.set_session(session)
    try:
      tf.keras.backend.set_learning_phase(0)
      model = compiling.build_model(settings.model, self.spec)
      if not model.optimizer:
        # In a training mode, the model has the optimizer and the weight decay of the training.
        compiling.compile_model(model, settings, Schedule(settings.optimizer.learning_rate)
                                if settings.run.trains else None)
      compatibility.check_fits_checkpoint(
          model, settings, finding.find_run_dir_of_requested_checkpoint(settings, self.run_dir),
          self.checkpoint.readable_path)
      return model
    finally:
      tf.keras.backend.set_session(None)

  def _restore_weights(self, model: tf.keras.Model, session: tf.Session,
                       features_of_data: Sequence[Any] = ()) -> RestoredModel:
    tf.keras.backend.set_session(session)
    try:
      path = self.checkpoint.readable_path
      with translate_errors():
        restoring.make_saver(model.weights, path).restore(session, path)
      return RestoredModel(model, session, self.settings, self.spec, features_of_data)
    finally:
      tf.keras.backend.set_session(None)


@contextlib.contextmanager
def open_trained_model(settings: Settings, run_dir: RunDir) -> Iterator[TrainedModel]:
  """Finds the checkpoint that `--checkpoint` names, and describes the data set of the training.

  The checkpoint stays readable in the `with` block, even if a training run deletes it.

  Raises:
    UserError: the checkpoint does not exist, or was trained with other class names or image sizes.
  """
  tf.logging.set_verbosity(tf.logging.INFO if settings.run.verbosity > 0 else tf.logging.ERROR)
  with finding.pin_requested_checkpoint(settings, run_dir) as checkpoint:
    spec = opening.describe_trained_data(
        settings, run_dir, finding.find_run_dir_of_requested_checkpoint(settings, run_dir))
    # The checkpoint could also be restored for another image size, but would predict wrong classes.
    run_dir.check_flags(settings, changeable_flags=[
        name for name, _ in settings.items() if name != 'image_size'])
    yield TrainedModel(settings, run_dir, spec, checkpoint)


def _make_session(settings: Settings, devices: Devices) -> tf.Session:
  """Makes a session with a new graph. In a `with` block of the session, both are the defaults."""
  return tf.Session(graph=tf.Graph(), config=make_session_config(settings.devices, devices))


def _read_features(settings: Settings, source: Source) -> List[Any]:
  """Returns the first batches of features of an open source, as arrays."""
  batches: List[Any] = []
  with _make_session(settings, _CPU_ONLY) as session, tf.device('/cpu:0'), translate_errors(source):
    iterator = tf.data.make_initializable_iterator(opening.make_eval_input_fn(
        source, settings, False, _FEATURES_PER_BATCH)())
    features, _ = inputs.split_sample_weights(iterator.get_next()[0])
    session.run((tf.tables_initializer(), iterator.initializer))
    with contextlib.suppress(tf.errors.OutOfRangeError):
      while len(batches) < _NUM_FEATURE_BATCHES:
        batches.append(session.run(features))
  return batches


def add_size_checks(outputs: Dict[str, tf.Tensor], features: Any) -> Dict[str, tf.Tensor]:
  """Makes each output fail unless it has a value for each example of the batch `features`."""
  size = inputs.Batch(tf.nest.flatten(features)).size()

  def add_check(name: str, output: tf.Tensor) -> tf.Tensor:
    sizes = tf.shape(output, out_type=tf.int64)[:1]  # [] if the output is a scalar.
    with tf.control_dependencies([tf.Assert(tf.reduce_all(tf.equal(tf.pad(
        sizes, [[0, 1]], constant_values=-1)[:1], size)), [
            'the output {} must have a value for each example'.format(name), sizes, size])]):
      return tf.identity(output)

  return {name: add_check(name, output) if isinstance(output, tf.Tensor) else output
          for name, output in outputs.items()}

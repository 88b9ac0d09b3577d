"""ONNX and TFLite files: inputs, outputs, metadata, verification, and models without such files."""

import contextlib
import importlib
import json

import numpy as np
import onnx
import onnxruntime
import own_examples
import own_models
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT
from tensorflow.lite.python import convert

from estimator_train import models
from estimator_train.data import DataSet
from estimator_train.errors import UserError
from estimator_train.exporting import onnx_and_tflite as exports
from estimator_train.exporting.trained_model import RestoredModel
from estimator_train.settings import Settings
from estimator_train.settings.flags import KERAS_MODELS, PACKAGE_MODELS
from estimator_train.training import building

layers = tf.keras.layers


@pytest.fixture(autouse=True)
def converter_in_this_process(monkeypatch):
  """Converts to TFLite without another process, which would import TensorFlow."""
  monkeypatch.setattr(convert, '_toco_from_proto_bin', '')


@contextlib.contextmanager
def restored(build, image_shape=None, labels=(), **flags):
  """A model of random weights."""
  settings = Settings(mode='train', dataset='synthetic', model_dir='x', train_steps=1,
                      preprocess='caffe' if image_shape and image_shape[2] == 3 else 'unit',
                      **flags)
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    try:
      tf.keras.backend.set_learning_phase(0)
      model = build()
      if not model.optimizer:
        model.compile('sgd', tf.keras.losses.CategoricalCrossentropy(
            from_logits=model.outputs[0].op.type != 'Softmax'))
      session.run(tf.global_variables_initializer())
      yield RestoredModel(model, session, settings, DataSet('any', labels, image_shape, None, None))
    finally:
      tf.keras.backend.set_session(None)


def export(folder, *given):
  """Exports a model to ONNX; returns its inputs and outputs, and the outputs of onnxruntime."""
  with restored(*given, export_input='tensor') as model:
    names = exports.write_onnx(str(folder), model)
    inputs, expected, _ = exports.make_examples(model, [5])[0]
  session = onnxruntime.InferenceSession(str(folder / 'model.onnx'))
  assert names == {'inputs': list(inputs), 'outputs': list(expected)}
  return inputs, expected, dict(zip(names['outputs'], session.run(names['outputs'], inputs)))


def shapes(folder):
  """Returns the shapes of the inputs and the outputs by their names."""
  graph = onnx.load(str(folder / 'model.onnx')).graph
  return {value.name: [dimension.dim_param or dimension.dim_value
                       for dimension in value.type.tensor_type.shape.dim]
          for value in [*graph.input, *graph.output]}


@pytest.mark.parametrize('name', PACKAGE_MODELS + tuple(
    pytest.param(name, marks=pytest.mark.slow) for name in ('vgg16', 'resnet50')))
def test_registered_models(tmp_path, name):
  shape = (32, 32, 3) if name in KERAS_MODELS else (28, 28, 1)
  given = (lambda: models.build(name, shape, 3), shape, ('é', 'b', 'c'))
  _, expected, found = export(tmp_path, *given)
  np.testing.assert_allclose(found['probabilities'].sum(-1), np.ones(5), rtol=0, atol=1e-5)
  # Random weights of deep networks cause large logits, and rounding errors that are in proportion.
  np.testing.assert_allclose(found['probabilities'], expected['probabilities'], rtol=0,
                             atol=1e-3 if name in KERAS_MODELS else 1e-5)
  assert shapes(tmp_path) == {'images': ['N', *shape], 'probabilities': ['N', 3]}
  model = onnx.load(str(tmp_path / 'model.onnx'))
  onnx.checker.check_model(model)
  metadata = {entry.key: entry.value for entry in model.metadata_props}
  assert json.loads(metadata['class_names']) == ['é', 'b', 'c']
  assert model.producer_name == 'estimator_train' and 'tf2onnx' in metadata['converter']
  with restored(*given, export_input='tensor') as model:
    assert exports.write_tflite(str(tmp_path), model) == {}  # It has verified the file.


@pytest.mark.parametrize('name, preprocess', [
    ('fashion_cnn', 'unit'), ('mnist_dense', 'tf'), ('colors', 'torch'), ('colors', 'caffe')])
def test_the_inputs_of_images_are_described(tmp_path, name, preprocess):
  """tests/modes/test_export_mode.py compares pictures of several sizes with predictions."""
  shape = (32, 40, 3) if name == 'colors' else (28, 20, 1)

  def build():
    return models.build(name, shape, 3) if name != 'colors' else tf.keras.Sequential([
        layers.Conv2D(4, 3, input_shape=shape), layers.Flatten(), layers.Dense(
            3, 'softmax', kernel_initializer=tf.random_normal_initializer(stddev=3e-4))])

  with restored(build, shape, ('a', 'b', 'c')) as model:
    model.settings = model.settings.evolve(preprocess=preprocess)
    model.preprocess = building.make_model_preprocess(model.keras_model, model.settings.model,
                                                      model.dataset)
    assert exports.write_onnx(str(tmp_path), model) == {
        'inputs': ['pictures'], 'outputs': ['probabilities']}
    exports.write_tflite(str(tmp_path), model)
    description = model.describe_inputs()
    picture = np.random.RandomState(5).randint(0, 256, shape).astype(np.uint8)
    exported = model.with_pictures(tf.uint8)
    preprocessed = model.preprocess(tf.constant(picture[np.newaxis]))
    found, expected, tensor = model.session.run(
        [*exported.outputs.values(), *model.call(preprocessed).values(), preprocessed],
        {exported.inputs['pictures']: picture[np.newaxis]})
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
  detail, = tf.lite.Interpreter(str(tmp_path / 'model.tflite')).get_input_details()
  assert detail['dtype'] == np.uint8
  assert detail['shape'].tolist() == [1, *shape]  # Pictures of this size need no other call.
  # What a client does itself that has an image of the right size and a model for tensors.
  order = slice(None, None, -1 if description['channel_order'] == 'BGR' else 1)
  np.testing.assert_allclose(
      (picture[..., order] - np.array(description['mean'])) * description['scale'], tensor[0],
      rtol=0, atol=1e-4)
  assert description['size'] == list(shape[:2]) and description['class_names'] == ['a', 'b', 'c']
  metadata = {entry.key: entry.value
              for entry in onnx.load(str(tmp_path / 'model.onnx')).metadata_props}
  assert json.loads(metadata['preprocessing']) == description


def test_sizes_that_the_model_leaves_open_and_loops(tmp_path):
  export(tmp_path, lambda: tf.keras.Sequential([
      layers.Embedding(12, 4), layers.Bidirectional(layers.LSTM(3)), layers.Dense(2)]))
  assert shapes(tmp_path)['embedding_input'] == ['N', 'embedding_input_1']
  export(tmp_path, lambda: own_models.of_any_size((7, 9, 3), 2), (7, 9, 3), ('a', 'b'))
  assert shapes(tmp_path)['images'] == ['N', 'images_1', 'images_2', 3]
  with restored(own_examples.next_word) as model:
    exports.write_onnx(str(tmp_path), model)  # Embedding with mask_zero=True, LSTM.


def scaled_classifier(scale):
  return tf.keras.Sequential([layers.Dense(
      2, 'softmax', input_shape=[2], kernel_initializer=tf.constant_initializer(
          [[scale, 0], [0, scale]]))])


@pytest.mark.parametrize('name', ['ONNX', 'TFLite'])
def test_outputs_must_agree_but_for_rounding_errors_of_large_logits(tmp_path, monkeypatch, name):
  loader_name = '_load_' + name.lower()
  load = getattr(exports, loader_name)

  def load_wrong(*given):
    run = load(*given)
    return lambda inputs: {name: array + 2e-4 for name, array in run(inputs).items()}

  def fails_to_load(*given):
    raise ValueError('no such operation')

  def write(scale, loader):
    monkeypatch.setattr(exports, loader_name, loader)
    with restored(lambda: scaled_classifier(scale), None, ('a', 'b')) as model:
      getattr(exports, 'write_' + name.lower())(str(tmp_path), model)

  write(100, load_wrong)
  with pytest.raises(UserError, match='the outputs of the {} model must equal those of the check'
                                      'point to 0.0001: difference 2'.format(name)):
    write(1, load_wrong)
  with pytest.raises(UserError, match='cannot run the exported model: no such operation: give --'):
    write(1, fails_to_load)


def with_feature_columns():
  inputs = {'size': tf.keras.Input([1], name='size')}
  columns = [tf.feature_column.numeric_column('size')]
  inner = tf.keras.Model(inputs, layers.DenseFeatures(columns)(inputs))
  return tf.keras.Model(inputs, inner(inputs))


def test_what_is_rejected_before_the_conversion(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(str(ROOT))
  for write, build, message in (
      (exports.write_tflite, with_feature_columns, 'cannot convert the model: it has a layer '
       'DenseFeatures: give --export_format=saved_model'),
      (exports.write_onnx, lambda: importlib.import_module('examples.tabular').model(),
       'inputs of an ONNX model must be numbers: strings: city: give --export_format=saved_model')):
    with restored(build) as model, pytest.raises(UserError, match=message):
      write(str(tmp_path), model)
  assert not list(tmp_path.iterdir())


def test_an_index_that_no_embedding_limits(tmp_path):
  """The limit of random integers is lowered until the model accepts them."""
  def build():
    indices = tf.keras.Input([4], dtype=tf.int32, name='indices')
    return tf.keras.Model(indices, layers.Lambda(lambda rows: tf.gather(tf.eye(2), rows))(indices))

  export(tmp_path, build)
  assert shapes(tmp_path)['indices'] == ['N', 4]


def test_differences():
  for expected, found, difference in (
      ({'a': [.1, .2]}, {'a': [.1, .25], 'b': [7]}, .05),
      ({'a': [10., -20.]}, {'a': [10., -21.]}, .05),
      ({'a': [1.], 'b': [.5]}, {'a': [1.], 'b': [.7]}, .2), ({'a': [1.]}, {'a': [[1.]]}, np.inf),
      ({'a': [1.]}, {'b': [1.]}, np.inf), ({'a': [1., 2.]}, {'a': [1., np.nan]}, np.inf),
      ({'a': np.zeros((0, 2))}, {'a': np.zeros((0, 2))}, 0)):
    assert exports.largest_difference(expected, found) == pytest.approx(difference)

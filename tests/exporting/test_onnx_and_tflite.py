"""ONNX and TFLite files: inputs, outputs, metadata, verification, and models without such files."""

import contextlib
import json

import numpy as np
import onnx
import onnxruntime
import own_examples
import own_models
import pytest
import tensorflow.compat.v1 as tf
from conftest import keras_session
from tensorflow.lite.python import convert

from estimator_train.data import DataSet
from estimator_train.errors import UserError
from estimator_train.exporting import h5_model, onnx_and_tflite as exports, verification
from estimator_train.exporting.restored_model import RestoredModel
from estimator_train.model import losses, networks
from estimator_train.settings import PREPROCESSING_FILE, Settings, command_line
from estimator_train.settings.flags import KERAS_MODELS, PACKAGE_MODELS

layers = tf.keras.layers


@pytest.fixture(autouse=True)
def converter_in_this_process(monkeypatch):
  """Converts to TFLite without another process, which would import TensorFlow."""
  monkeypatch.setattr(convert, '_toco_from_proto_bin', '')


@contextlib.contextmanager
def restored(build, image_shape=None, labels=(), **flags):
  """A model of random weights."""
  settings = Settings(mode='train', dataset='synthetic', model_dir='x', train_steps=1, **flags)
  with keras_session() as session:
    tf.keras.backend.set_learning_phase(0)
    model = build()
    if not model.optimizer:
      model.compile('sgd', losses.default_loss(model))
    session.run(tf.global_variables_initializer())
    yield RestoredModel(model, session, settings, DataSet('any', labels, image_shape, None, None))


def export(folder, model):
  """Exports a model to ONNX; returns the outputs of the checkpoint and those of onnxruntime."""
  names = exports.write_onnx(str(folder), model)
  inputs, expected, _ = verification.make_batch(model, 5)
  session = onnxruntime.InferenceSession(str(folder / 'model.onnx'))
  assert names == {'inputs': list(inputs), 'outputs': list(expected)}
  return expected, dict(zip(expected, session.run(list(expected), inputs)))


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
  with restored(lambda: networks.build_named_model(name, shape, 3), shape, ('é', 'b', 'c'),
                export_input='tensor') as model:
    expected, found = export(tmp_path, model)
    assert exports.write_tflite(str(tmp_path), model) == {}  # It has verified the file.
    description = model.describe_inputs()
  np.testing.assert_allclose(found['probabilities'].sum(-1), np.ones(5), rtol=0, atol=1e-5)
  # Random weights of deep networks cause large logits, and rounding errors that are in proportion.
  np.testing.assert_allclose(found['probabilities'], expected['probabilities'], rtol=0,
                             atol=1e-3 if name in KERAS_MODELS else 1e-5)
  assert shapes(tmp_path) == {'images': ['N', *shape], 'probabilities': ['N', 3]}
  model = onnx.load(str(tmp_path / 'model.onnx'))
  onnx.checker.check_model(model)
  metadata = {entry.key: entry.value for entry in model.metadata_props}
  assert json.loads(metadata['class_names']) == ['é', 'b', 'c']
  assert json.loads(metadata['preprocessing']) == description
  assert model.producer_name == 'estimator_train' and 'tf2onnx' in metadata['converter']


@pytest.mark.parametrize('preprocess, channels', [('unit', 1), ('tf', 1), ('torch', 3),
                                                  ('caffe', 3)])
def test_the_inputs_of_images_are_described(tmp_path, preprocess, channels):
  """tests/modes/test_export_mode.py compares pictures of several sizes with predictions."""
  shape = (28, 20, channels)
  with restored(lambda: own_models.two_layers(shape, 3), shape, ('a', 'b', 'c'),
                preprocess=preprocess) as model:
    exports.write_tflite(str(tmp_path), model)
    description = model.describe_inputs()
    picture = np.random.RandomState(5).randint(0, 256, shape).astype(np.uint8)
    tensor, = model.session.run(model.preprocess(tf.constant(picture[np.newaxis])))
    copy = tmp_path / 'copy'
    copy.mkdir()
    h5_model.write_h5(str(copy), model)
    (copy / 'model.h5').rename(copy / 'weights.hdf5')
  detail, = tf.lite.Interpreter(str(tmp_path / 'model.tflite')).get_input_details()
  # Pictures of this size need no other call.
  assert detail['dtype'] == np.uint8 and detail['shape'].tolist() == [1, *shape]
  # What a client does itself that has an image of the right size and a model for tensors.
  order = slice(None, None, -1 if description['channel_order'] == 'BGR' else 1)
  np.testing.assert_allclose(
      (picture[..., order] - np.array(description['mean'])) * description['scale'], tensor,
      rtol=0, atol=1e-4)
  # A run that starts with the weights of the export, or with a copy of one of its files, scales
  # pixel values in the same way.
  (tmp_path / PREPROCESSING_FILE).write_text(json.dumps(description))
  for path in (tmp_path, tmp_path / 'any.h5', copy / 'weights.hdf5'):
    settings = command_line.parse(['--train_steps=1', '--weights={}'.format(path),
                                   '--model_dir={}'.format(tmp_path / 'new')])
    assert settings.model.preprocess == preprocess


def looked_up():
  indices = tf.keras.Input([4], dtype=tf.int32, name='indices')
  return tf.keras.Model(indices, layers.Lambda(lambda rows: tf.gather(tf.eye(2), rows))(indices))


@pytest.mark.parametrize('name, build, image_shape, expected', [
    ('embedding_input', lambda: tf.keras.Sequential([
        layers.Embedding(12, 4), layers.Bidirectional(layers.LSTM(3)), layers.Dense(2)]),
     None, ['N', 'embedding_input_1']),
    ('images', lambda: own_models.of_any_size((7, 9, 3), 2), (7, 9, 3),
     ['N', 'images_1', 'images_2', 3]),
    # The limit of random integers is lowered until the model accepts them.
    ('indices', looked_up, None, ['N', 4])])
def test_sizes_that_the_model_leaves_open_and_indices(tmp_path, name, build, image_shape, expected):
  labels = ('a', 'b') if image_shape else ()
  with restored(build, image_shape, labels, export_input='tensor') as model:
    export(tmp_path, model)
  assert shapes(tmp_path)[name] == expected


def test_a_model_with_a_mask_is_written_to_onnx(tmp_path):
  """`write_onnx` compares the file with the model."""
  with restored(own_examples.next_word) as model:
    exports.write_onnx(str(tmp_path), model)  # Embedding with mask_zero=True, LSTM.


@pytest.mark.parametrize('name', ['onnx', 'tflite'])
def test_outputs_must_agree_but_for_rounding_errors_of_large_logits(tmp_path, monkeypatch, name):
  write, load = getattr(exports, 'write_' + name), getattr(exports, '_load_' + name)

  def load_wrong(*given):
    run = load(*given)
    return lambda inputs: {name: array + 2e-4 for name, array in run(inputs).items()}

  def classifier(scale):
    return restored(lambda: tf.keras.Sequential([layers.Dense(
        2, 'softmax', input_shape=[2], kernel_initializer=tf.initializers.identity(scale))]),
                    labels=('a', 'b'))

  monkeypatch.setattr(exports, '_load_' + name, load_wrong)
  with classifier(100.) as model:
    write(str(tmp_path), model)
  for loader, message in (
      (load_wrong, 'the outputs of the (ONNX|TFLite) model must equal those of the checkpoint to '
       '0.0001: difference 2'),
      (lambda *given: {}['operation'], "cannot run the exported model: 'operation': give --")):
    monkeypatch.setattr(exports, '_load_' + name, loader)
    with classifier(1.) as model, pytest.raises(UserError, match=message):
      write(str(tmp_path), model)


@pytest.mark.parametrize('build, features, is_wrong', [
    # Of the numbers of a table, 1 % of the examples; negative numbers; a row of an embedding.
    (lambda: tf.keras.Sequential([layers.Dense(2, input_shape=[3])]), (),
     lambda inputs: inputs['dense_input'][:, 0] > .98),
    (lambda: tf.keras.Sequential([layers.Dense(2, input_shape=[3])]), (),
     lambda inputs: inputs['dense_input'][:, 0] < -1),
    (lambda: tf.keras.Sequential([layers.Embedding(5000, 2, input_length=3)]), (),
     lambda inputs: inputs['embedding_input'][:, 0] > 900),
    # Only the data has such examples.
    (lambda: tf.keras.Sequential([layers.Dense(2, input_shape=[3])]),
     [np.full([4, 3], 50., np.float64)], lambda inputs: inputs['dense_input'][:, 0] == 50)])
def test_rare_errors_are_found(build, features, is_wrong):
  """The exported model is wrong for a few examples only."""
  with restored(build) as model:
    model.features_of_data = features
    batches = verification.make_batches(model)
    by_inputs = {id(batch.inputs): batch.outputs for batch in batches}

    def run(inputs, error=1.):
      rows = is_wrong(inputs)
      return {name: array + error * rows.reshape([-1] + [1] * (array.ndim - 1))
              for name, array in by_inputs[id(inputs)].items()}

    verification.verify(batches, lambda: lambda inputs: run(inputs, 0.), 'ONNX', 'onnxruntime')
    verification.verify(batches[:2], lambda: run, 'ONNX', 'onnxruntime')
    with pytest.raises(UserError, match='must equal those of the checkpoint'):
      verification.verify(batches, lambda: run, 'ONNX', 'onnxruntime')


def test_a_large_model_is_verified_with_a_few_examples():
  """As many as it computes in ten seconds, and examples of which the outputs are numbers."""
  with restored(lambda: tf.keras.Sequential([layers.Lambda(tf.log, input_shape=[3])])) as model:
    times = iter([100., 105., 109., 110.])
    sizes = [len(batch.inputs['lambda_input'])
             for batch in verification.make_batches(model, lambda: next(times))]
    assert sizes == [1, 3, 16] and next(times, None) is None  # Two are undefined.
    assert len(verification.make_batches(model)) == 2 + 8


def with_feature_columns():
  inputs = {'city': tf.keras.Input([1], dtype=tf.string, name='city')}
  column = tf.feature_column.categorical_column_with_vocabulary_list('city', ['Bern', 'Oslo'])
  features = layers.DenseFeatures([tf.feature_column.indicator_column(column)])(inputs)
  return tf.keras.Model(inputs, tf.keras.Model(inputs, features)(inputs))


def test_what_is_rejected_before_the_conversion(tmp_path):
  for write, message in (
      (exports.write_tflite, 'cannot convert the model: it has a layer DenseFeatures: give --exp'),
      (exports.write_onnx, 'inputs of an ONNX model must be numbers: strings: city: give --expor')):
    with restored(with_feature_columns) as model, pytest.raises(UserError, match=message):
      write(str(tmp_path), model)
  assert not list(tmp_path.iterdir())


def test_differences():
  for expected, found, difference in (
      ({'a': [.1, .2]}, {'a': [.1, .25], 'b': [7]}, .05),
      ({'a': [10., -20.]}, {'a': [10., -21.]}, .05),
      ({'a': [1.], 'b': [.5]}, {'a': [1.], 'b': [.7]}, .2), ({'a': [1.]}, {'a': [[1.]]}, np.inf),
      ({'a': [1.]}, {'b': [1.]}, np.inf), ({'a': [1., 2.]}, {'a': [1., np.nan]}, np.inf),
      ({'a': np.zeros((0, 2))}, {'a': np.zeros((0, 2))}, 0)):
    assert verification.compute_largest_difference(expected, found) == pytest.approx(difference)

"""ONNX files: their inputs, outputs and metadata, what verifies them, and what has no such file."""

import importlib
import importlib.util
import json
import logging

import numpy as np
import onnx
import onnxruntime
import own_examples
import own_models
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT

from estimator_train.datasets.description import DataSet
from estimator_train.errors import UserError
from estimator_train.exporting import comparison, onnx_model, random_examples
from estimator_train.models import registry
from estimator_train.models.preprocessing import make_preprocess
from estimator_train.settings import choices


def data_set(image_shape=None, labels=()):
  return DataSet('any', labels, image_shape, None, None)


def export(folder, build, dataset=None):
  """Exports a model of random weights, and verifies it; returns random inputs and its outputs."""
  dataset = dataset or data_set()
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    try:
      tf.keras.backend.set_learning_phase(0)
      model = build()
      if not model.optimizer:
        model.compile('sgd', tf.keras.losses.CategoricalCrossentropy(
            from_logits=model.outputs[0].op.type != 'Softmax'))
      session.run(tf.global_variables_initializer())
      preprocess = dataset.image_shape and make_preprocess('caffe' if dataset.image_shape[2] == 3
                                                           else 'unit', *dataset.image_shape)
      onnx_model.write_onnx(
          str(folder), session, random_examples.named_inputs(model, dataset),
          random_examples.named_outputs(model, dataset), dataset.labels, 0)
      examples = random_examples.RandomExamples(model, session, dataset, preprocess)
      onnx_model.verify_onnx(str(folder), examples)
      return examples.make(5)
    finally:
      tf.keras.backend.set_session(None)


def run(folder, inputs):
  session = onnxruntime.InferenceSession(str(folder / 'model.onnx'))
  names = [output.name for output in session.get_outputs()]
  return dict(zip(names, session.run(names, inputs)))


def shapes(folder):
  """Returns the shapes of the inputs and the outputs by their names."""
  graph = onnx.load(str(folder / 'model.onnx')).graph
  return {value.name: [dimension.dim_param or dimension.dim_value
                       for dimension in value.type.tensor_type.shape.dim]
          for value in [*graph.input, *graph.output]}


@pytest.mark.parametrize('name', choices.PACKAGE_MODELS + tuple(
    pytest.param(name, marks=pytest.mark.slow) for name in ('vgg16', 'resnet50')))
def test_bundled_models(tmp_path, name):
  shape = (32, 32, 3) if name in choices.KERAS_MODELS else (28, 28, 1)
  labels = ('é', 'b', 'c')
  inputs, expected = export(tmp_path, lambda: registry.build(name, shape, 3),
                            data_set(shape, labels))
  found = run(tmp_path, inputs)
  assert list(inputs) == ['images'] and list(found) == list(expected) == ['probabilities']
  np.testing.assert_allclose(found['probabilities'].sum(-1), np.ones(5), rtol=0, atol=1e-5)
  # Random weights of deep networks cause large logits, and rounding errors that are in proportion.
  np.testing.assert_allclose(found['probabilities'], expected['probabilities'], rtol=0,
                             atol=1e-3 if name in choices.KERAS_MODELS else 1e-5)
  assert shapes(tmp_path) == {'images': ['N', *shape], 'probabilities': ['N', 3]}
  model = onnx.load(str(tmp_path / 'model.onnx'))
  onnx.checker.check_model(model)
  metadata = {entry.key: entry.value for entry in model.metadata_props}
  assert json.loads(metadata['class_names']) == list(labels)
  assert model.producer_name == 'estimator_train' and 'tf2onnx' in metadata['converter']


def test_several_inputs_and_integers(tmp_path):
  inputs, expected = export(tmp_path, own_examples.two_outputs)
  assert inputs['words'].dtype == np.int32
  assert 2 <= inputs['words'].max() < own_examples.WORDS
  found = run(tmp_path, inputs)
  assert comparison.largest_difference(expected, found) < 1e-6
  assert list(shapes(tmp_path).items()) == [('numbers', ['N', 3]), ('words', ['N', 5]),
                                            ('price', ['N', 1]), ('kind', ['N', 2])]


def test_sizes_that_the_model_leaves_open_and_loops(tmp_path, caplog):
  layers = tf.keras.layers
  export(tmp_path, lambda: tf.keras.Sequential([
      layers.Embedding(12, 4), layers.Bidirectional(layers.LSTM(3)), layers.Dense(2)]))
  assert shapes(tmp_path)['embedding_input'] == ['N', 'embedding_input_1']
  export(tmp_path, lambda: own_models.of_any_size((7, 9, 3), 2), data_set((7, 9, 3), ('a', 'b')))
  assert shapes(tmp_path)['images'] == ['N', 'images_1', 'images_2', 3]
  with caplog.at_level(logging.WARNING):
    export(tmp_path, own_examples.next_word)  # Embedding with mask_zero=True, LSTM.
  if onnxruntime.__version__ == '1.10.0':
    assert 'loads model.onnx only with ORT_DISABLE_ALL' in caplog.text


def test_outputs_must_agree_but_for_rounding_errors_of_large_logits(tmp_path, monkeypatch):
  def build(scale):
    return tf.keras.Sequential([tf.keras.layers.Dense(
        2, 'softmax', input_shape=[2], kernel_initializer=tf.constant_initializer(
            [[scale, 0], [0, scale]]))])

  run_session = onnx_model._run_onnx
  monkeypatch.setattr(onnx_model, '_run_onnx', lambda *given: {
      name: array + 2e-5 for name, array in run_session(*given).items()})
  export(tmp_path, lambda: build(100), data_set(labels=('a', 'b')))
  with pytest.raises(UserError, match='must equal those of the checkpoint to 1e-05: difference 2'):
    export(tmp_path, lambda: build(1), data_set(labels=('a', 'b')))


def test_strings(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(str(ROOT))
  with pytest.raises(UserError, match='inputs of an ONNX model must be numbers: strings: city: give'
                                      ' --export_format=saved_model'):
    export(tmp_path, lambda: importlib.import_module('examples.tabular').model())


def test_an_index_that_no_embedding_limits():
  """The limit of random integers is lowered until the model accepts them."""
  with tf.Graph().as_default(), tf.Session() as session:
    indices = tf.keras.Input([4], dtype=tf.int32, name='indices')
    rows = tf.keras.layers.Lambda(lambda indices: tf.gather(tf.eye(2), indices))(indices)
    model = tf.keras.Model(indices, rows)
    inputs, outputs = random_examples.RandomExamples(model, session, data_set(), None).make(9)
  assert set(inputs['indices'].ravel()) == {0, 1}
  np.testing.assert_array_equal(outputs[model.output_names[0]], np.eye(2)[inputs['indices']])


def test_exports_that_fail_leave_nothing(run_program, tmp_path, monkeypatch):
  write, find, exports = onnx_model.write_onnx, importlib.util.find_spec, tmp_path / 'exports'

  def write_with_another_weight(folder, *given):
    write(folder, *given)
    path = folder + '/model.onnx'
    model = onnx.load(path)
    kernel, = (tensor for tensor in model.graph.initializer if list(tensor.dims) == [32, 3])
    weights = onnx.numpy_helper.to_array(kernel).copy()
    weights[0, 0] += 1e-2
    kernel.CopyFrom(onnx.numpy_helper.from_array(weights, kernel.name))
    onnx.save(model, path)

  arguments = ['--dataset=synthetic', '--image_size=8,8', '--labels=a,b,c', '--batch_size=4',
               '--train_steps=1', '--model=own_models:two_layers', '--mode=train',
               '--model_dir={}'.format(tmp_path / 'model'), '--export_format=onnx',
               '--export_dir={}'.format(exports)]
  with monkeypatch.context() as context:
    context.setattr(importlib.util, 'find_spec',
                    lambda name, *given: None if name == 'onnx' else find(name, *given))
    done = run_program(*arguments)
    assert done.code == 2 and done.out == '' and not (tmp_path / 'model').exists()
    assert done.err == ('error: --export_format=onnx requires the extra `onnx`: not installed: '
                        'onnx: install it with `pip install estimator_train[onnx]`\n')
    assert run_program(*arguments[:-2]).code == 0  # Without --export_dir, nothing is exported.
  monkeypatch.setattr(onnx_model, 'write_onnx', write_with_another_weight)
  done = run_program(*arguments)
  assert done.code == 2 and list(exports.iterdir()) == []
  assert 'error: the outputs of the ONNX model must equal those of the checkpoint to 1e-05: ' \
      'difference ' in done.err.splitlines()[-1]


@pytest.mark.parametrize('expected, found, difference', [
    ({'a': [.1, .2]}, {'a': [.1, .25], 'b': [7]}, .05),
    ({'a': [10., -20.]}, {'a': [10., -21.]}, .05),
    ({'a': [1.], 'b': [.5]}, {'a': [1.], 'b': [.7]}, .2),
    ({'a': [1.]}, {'a': [[1.]]}, np.inf),
    ({'a': [1.]}, {'b': [1.]}, np.inf),
    ({'a': [1., 2.]}, {'a': [1., np.nan]}, np.inf),
    ({'a': np.zeros((0, 2))}, {'a': np.zeros((0, 2))}, 0.),
], ids=str)
def test_differences(expected, found, difference):
  assert comparison.largest_difference(expected, found) == pytest.approx(difference)

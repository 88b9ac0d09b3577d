"""Files of TensorFlow 1.15 in each of the libraries of docs/exporting.md that load them."""

import json
import subprocess

import h5py
import load_h5_files
import numpy as np
import portable_models
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT

from estimator_train.exporting import portable_h5, portable_layers
from estimator_train.models import registry
from estimator_train.settings import choices
from estimator_train.training import losses

BUNDLED = choices.PACKAGE_MODELS + ('vgg16',)
BATCH = 4


def build(name):
  """Returns a bundled model or one of a user, compiled."""
  if name in BUNDLED:
    shape = (28, 28, 1) if name in choices.PACKAGE_MODELS else (33, 33, 3)
    model = registry.build(name, shape, 10)
    loss = losses.default_loss(model)
  else:
    model = getattr(portable_models, name)()
    loss = tf.keras.losses.CategoricalCrossentropy(from_logits=True)
    if name == 'two_inputs':
      loss = {'price': 'mse', 'kind': loss}
    elif name == 'model_as_output':
      loss = 'mae'
  model.compile(tf.keras.optimizers.SGD(.05), portable_h5.full_loss_names(loss),
                ['accuracy'] if len(model.outputs) == 1 else None)
  return model


def draw_weights(model, random):
  """Draws weights that make each layer visible in the outputs; new ones would hide batch norm."""
  def draw(variable, value):
    if 'moving_variance' in variable.name or 'gamma' in variable.name:
      return random.uniform(.5, 1.5, value.shape)
    if value.ndim < 2:
      return random.normal(0, .2, value.shape)
    return random.normal(0, 1 / np.sqrt(np.prod(value.shape[:-1])), value.shape)

  model.set_weights([draw(variable, value)
                     for variable, value in zip(model.weights, model.get_weights())])


def draw_examples(model, random):
  """Returns the inputs and the labels of a batch."""
  def draw(tensor):
    shape = [BATCH] + [size or 7 for size in tensor.shape.as_list()[1:]]
    is_of_words = any(isinstance(layer, tf.keras.layers.Embedding) for layer in model.layers)
    if tensor.dtype.is_integer or is_of_words and len(model.inputs) == 1:
      return random.randint(0, 11, shape)
    return random.normal(size=shape).astype(np.float32)

  labels = [np.eye(output.shape[-1].value, dtype=np.float32)[np.arange(BATCH) % 3]
            for output in model.outputs]
  return [draw(tensor) for tensor in model.inputs], labels


def first(result):
  """Returns the total loss, which is the first number unless it is the only one."""
  return np.ravel(result)[0]


def write(folder, name):
  """Writes a rewritten file of a model, and what TensorFlow 1.15 computes, for load_h5_files.py."""
  random = np.random.RandomState(sum(map(ord, name)))
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    model = build(name)
    draw_weights(model, random)
    inputs, labels = draw_examples(model, random)
    outputs = model.predict(inputs)
    path = str(folder / (name + '.h5'))
    model.save(path, save_format='h5')
    results = {'loss': first(model.evaluate(inputs, labels, verbose=0))}
    if name not in BUNDLED:  # Some of these have dropout, others a loss that overflows.
      results['steps'] = [first(model.train_on_batch(inputs, labels)) for _ in range(2)]
    for prefix, arrays in (('x', inputs), ('t', labels),
                           ('y', outputs if isinstance(outputs, list) else [outputs])):
      results.update({prefix + str(index): array for index, array in enumerate(arrays)})
    np.savez(path[:-len('.h5')] + '.npz', **results)
    tf.keras.backend.set_session(None)
  return path


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp('h5')
  for name in BUNDLED[:-1] + tuple(function.__name__ for function in portable_models.PORTABLE):
    assert portable_h5.make_portable(write(folder, name)) is None, name
  return folder


def verify(found):
  assert max(found['compiled'], found['uncompiled']) < 1e-6
  assert found['loss'] < 1e-6 and found.get('training', 0) < 1e-5


def test_tensorflow_1_evaluates_and_trains_alike(files):
  paths = sorted(files.glob('*.h5'))
  assert len(paths) >= 16
  for path in paths:
    with tf.Graph().as_default(), tf.Session() as session:
      tf.keras.backend.set_session(session)
      found = load_h5_files.check(tf.keras, str(path), is_eager=False)
      tf.keras.backend.set_session(None)
    print(path.name, found)
    verify(found)


@pytest.mark.slow
def test_other_libraries_evaluate_and_train_alike(files, clients_python):
  assert portable_h5.make_portable(write(files, 'vgg16')) is None
  done = subprocess.run([clients_python, str(ROOT / 'tests' / 'load_h5_files.py'), str(files)],
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                        timeout=600)
  assert done.returncode == 0, done.stderr
  results = json.loads(done.stdout.splitlines()[-1])
  assert set(results) == {'tf_keras', 'keras'}
  for client, answer in results.items():
    assert len(answer) >= 17
    for name, found in answer.items():
      print(client, name, found)
      assert 'error' not in found
      verify(found)


def test_a_file_that_keras_3_cannot_load_stays_as_it_is(tmp_path):
  path = tmp_path / 'model.h5'
  tf.keras.backend.set_session(None)
  for model, reason in portable_models.not_portable():
    model.save(str(path), save_format='h5')
    before = path.read_bytes()
    assert portable_h5.make_portable(str(path)) == reason
    assert path.read_bytes() == before
  tf.keras.backend.clear_session()


def test_a_layer_of_the_user_stays_as_it_is():
  """Even if it has the names of Keras's arguments, or of Keras's class."""
  own = {'class_name': 'Own', 'config': {
      'name': 'own', 'axis': [1, 2], 'time_major': True, 'return_sequences': True,
      'activation': 'hard_sigmoid', 'table': {'class_name': 'Zeros', 'dtype': 'float32'}}}
  same_name = {'class_name': 'SpatialDropout2D', 'config': {'name': 'drop', 'trainable': True}}
  model = {'class_name': 'Sequential', 'config': {'name': 'model', 'layers': [own, same_name]}}
  assert portable_layers.portable_model(model) == model


def test_an_unknown_configuration_is_a_reason(tmp_path):
  path = str(tmp_path / 'model.h5')
  with h5py.File(path, 'w') as file:
    file.attrs['model_config'] = json.dumps({'class_name': 'Sequential', 'config': {
        'name': 'model', 'layers': [{'class_name': 'RNN', 'config': {'name': 'r', 'cell': {}}}]}})
  assert 'the configuration of a layer is unknown' in portable_h5.make_portable(path)


def test_a_loss_by_another_name_is_the_same():
  labels, outputs = np.float32([[[.2, .8], [.6, .4]], [[.3, .7], [.9, .1]]])
  for name in ('mse', 'MAE', 'mape', 'msle', 'kld', 'logcosh', 'huber_loss',
               'kullback_leibler_divergence', 'cosine_proximity'):
    full_name = portable_h5.full_loss_names(name)
    assert full_name != name
    with tf.Graph().as_default(), tf.Session() as session:
      values = [session.run(tf.reduce_mean(tf.keras.losses.get(loss)(labels, outputs)))
                for loss in (name, full_name)]
    assert values[0] == pytest.approx(values[1], rel=1e-6), name
    assert portable_h5.full_loss_names({'a': [name]}) == {'a': [full_name]}

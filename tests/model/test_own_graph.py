"""Models whose objects cannot be copied: `convert` trains and evaluates them as Keras does."""

import sys

import numpy as np
import pytest
import tensorflow
import tensorflow.compat.v1 as tf
from conftest import ROOT, run_process
from like_keras import CLASSES, X, Y, compare, convert, in_batches, make_config, predict

import estimator_train

keras = tf.keras
layers = tf.keras.layers
backend = keras.backend
pytestmark = pytest.mark.usefixtures('own_graph')


def sgd(model, loss='mse', **options):
  model.compile(keras.optimizers.SGD(.05), loss, **options)
  return model


def sequential(*items):
  return keras.Sequential([layers.InputLayer((6,)), *items])


class Residual(keras.Sequential):
  """A Sequential with a `call` of its own."""

  def call(self, inputs, training=None, mask=None):
    return inputs + super().call(inputs, training=training)


def inner_model_with_own_call():
  return sgd(sequential(Residual([layers.Dense(6, 'tanh', input_shape=(6,))]), layers.Dense(1)))


def call_set_on_an_object():
  layer = layers.Dense(4, 'tanh')
  original = layer.call
  layer.call = lambda inputs: 3 * original(inputs)
  return sgd(sequential(layer, layers.Dense(1)))


def closures():
  factor, offset = tf.constant([2.] * 6) * 2, tf.Variable([1.], name='offset')
  model = sequential(layers.Lambda(lambda inputs: inputs * factor + offset), layers.Dense(1))
  hidden = model.layers[0].output
  return sgd(model, lambda true, outputs: backend.mean(tf.square(true - outputs), -1)
             + .01 * backend.mean(hidden, -1))


def trained_as_compiled():
  model = sgd(sequential(layers.Dense(4, 'tanh'), layers.Dense(1)))
  model.layers[0].trainable = False
  return model


def wrapped_and_tied():
  inner = keras.Sequential([layers.Dense(3, 'tanh', input_shape=(2,)), layers.Dense(2)])
  model = sequential(layers.Reshape((3, 2)), layers.TimeDistributed(inner),
                     layers.Lambda(lambda inputs: backend.dot(inputs, inner.layers[0].kernel)),
                     layers.Flatten(), layers.Dense(1))
  return sgd(model)


def of_references():
  """Variables that are no resources, also under a strategy."""
  class Scale(layers.Layer):
    def build(self, input_shape):
      self.scale = tf.Variable(tf.ones([6]), use_resource=False)
      self._trainable_weights.append(self.scale)
      super().build(input_shape)

    def call(self, inputs):
      return inputs * self.scale

  model = sequential(Scale(), layers.Dense(1))
  model.compile(tf.train.GradientDescentOptimizer(.05), 'mse')
  return model


def of_loops_and_conditions():
  @tf.custom_gradient
  def limit(values):
    return values, lambda upstream: tf.clip_by_value(upstream, -.01, .01)

  def compute(inputs):
    return limit(tf.map_fn(lambda row: tf.cond(row[0] > 0, lambda: 2 * row, lambda: row * row),
                           inputs))

  return sgd(sequential(layers.Dense(3, 'tanh'), layers.Lambda(compute), layers.Dense(1)),
             metrics=['mae'])


def of_another_learning_phase():
  return sgd(sequential(layers.Dense(4), layers.Lambda(
      lambda inputs: backend.in_train_phase(2 * inputs, inputs)), layers.Dense(1)))


class Spectral(layers.Dense):
  """Assigns to a variable in its `call`, on each replica the same value."""

  def build(self, input_shape):
    super().build(input_shape)
    self.scale = self.add_weight('scale', (), initializer='ones', trainable=False)

  def call(self, inputs):
    norm = tf.norm(self.kernel)
    with tf.control_dependencies([self.scale.assign(norm)]):
      return super().call(inputs) / tf.identity(norm)


@pytest.mark.parametrize('make, replicas', [
    (inner_model_with_own_call, (1, 2)), (call_set_on_an_object, (1, 2)), (closures, (1, 2)),
    (trained_as_compiled, (1, 2)), (wrapped_and_tied, (1, 2)), (of_references, (2,)),
    (of_loops_and_conditions, (1, 2)), (of_another_learning_phase, (1, 2))])
def test_like_keras(make, replicas, tmp_path):
  compare(make(), tmp_path, (X, Y), replicas=replicas)


def test_an_assignment_in_a_call(tmp_path):
  compare(sgd(sequential(Spectral(1))), tmp_path, (X, Y), replicas=(1, 2))

  class MeanOfBatch(layers.Layer):
    def build(self, input_shape):
      self.mean = self.add_weight('mean', (), initializer='zeros', trainable=False)

    def call(self, inputs):
      with tf.control_dependencies([self.mean.assign(tf.reduce_mean(inputs))]):
        return tf.identity(inputs)

  model = sgd(sequential(MeanOfBatch(), layers.Dense(1)))
  with pytest.raises(estimator_train.UserError, match='must assign to variables by add_update: '):
    convert(model, tmp_path / 'b', num_cpu_replicas=2).train(in_batches((X, Y), 12), steps=1)


PIXELS = np.random.RandomState(0).randint(0, 256, (24, 6)).astype(np.uint8)


@pytest.mark.parametrize('features, labels, loss', [
    (PIXELS, Y, 'mse'), (PIXELS.astype(int), Y.astype(float), 'mse'),
    (X, CLASSES.astype(np.uint8), lambda true, outputs: tf.square(2 * true - 1 - outputs)),
    (X, CLASSES > 0, lambda true, outputs: tf.square(true - outputs))])
def test_features_and_labels_of_other_types(features, labels, loss, tmp_path):
  model = sequential(layers.Lambda(lambda inputs: (inputs - 128) / 128), layers.Dense(1))
  model.compile(keras.optimizers.SGD(.01), loss)
  compare(model, tmp_path, (features, labels))


def test_an_integer_that_the_input_cannot_hold(tmp_path):
  ids = keras.Input((6,), dtype='int32')
  model = sgd(keras.Model(ids, layers.Dense(1)(backend.cast(ids, 'float32'))))
  estimator = convert(model, tmp_path)
  for values in (np.full([2, 6], 2 ** 40), np.full([2, 6], 3e9), np.full([2, 6], np.nan)):
    with pytest.raises(tf.errors.InvalidArgumentError, match='within the range of int32'):
      predict(estimator, in_batches(values))
  assert predict(estimator, in_batches(np.full([2, 6], -7.5)))


def test_a_model_without_trained_weights(tmp_path):
  model = sgd(sequential(layers.Dense(1, trainable=False)))
  estimator = convert(model, tmp_path, num_cpu_replicas=2)
  estimator.train(in_batches((X, Y), 12), steps=1)
  assert estimator.get_variable_value('global_step') == 1
  np.testing.assert_allclose(predict(estimator, in_batches(X))[0], model.predict(X), atol=1e-6)


def test_features_of_another_shape_that_the_layers_accept(tmp_path):
  model = sgd(keras.Sequential([layers.Flatten(input_shape=(2, 3)), layers.Dense(1)]))
  found = predict(convert(model, tmp_path), in_batches(X))[0]
  np.testing.assert_allclose(found, model.predict(X.reshape(24, 2, 3)), atol=1e-6)


def scalar_output(inputs):
  return layers.Lambda(lambda values: tf.reduce_mean(tf.square(values)))(layers.Dense(1)(inputs))


def by_numpy(true, outputs):
  return tf.py_func(lambda *values: np.float32(np.abs(np.subtract(*values)).mean()),
                    [true, outputs], tf.float32)


def test_evaluations_do_not_depend_on_the_batch_size(tmp_path):
  """With a scalar output, metrics of py_func and tf.losses, masks, and the weight of a loss."""
  inputs = layers.Input((6,))
  masked = X.copy()
  masked[::3] = 0
  for number, (model, arrays) in enumerate((
      (sgd(keras.Model(inputs, scalar_output(inputs)), lambda true, outputs: outputs), (X, Y)),
      (sgd(sequential(layers.Dense(1)), metrics=[by_numpy, tf.losses.absolute_difference]), (X, Y)),
      (sgd(sequential(layers.Masking(), layers.Dense(2, 'softmax')),
           'sparse_categorical_crossentropy', loss_weights=[.25], metrics=['accuracy']),
       (masked, CLASSES)))):
    estimator = convert(model, tmp_path / str(number))
    whole, parts = (estimator.evaluate(in_batches(arrays, size)) for size in (24, 7))
    assert parts['examples'] == 24 and 'average_loss' in parts
    for name in set(whole) - {'loss', 'confusion_matrix'}:
      assert parts[name] == pytest.approx(whole[name], rel=1e-5), name
    expected = np.ravel(model.evaluate(*arrays, verbose=0))[0]
    assert whole['average_loss'] == pytest.approx(expected, rel=1e-5)
  assert whole['accuracy'] == pytest.approx(whole['acc'])


def test_the_training_graph_has_no_branches_of_the_learning_phase(tmp_path):
  types = []

  class Record(tf.train.SessionRunHook):
    def begin(self):
      types.extend(operation.type for operation in tf.get_default_graph().get_operations()
                   if operation.name.startswith('model/'))

  model = sgd(sequential(layers.Dense(4), layers.BatchNormalization(fused=False),
                         layers.Dropout(.5), layers.Dense(1)))
  convert(model, tmp_path).train(in_batches((X, Y)), [Record()], steps=1)
  assert 'MatMul' in types and not {'Switch', 'Merge'} & set(types)


def test_the_gradient_of_batch_norm_adds_no_zeros(tmp_path):
  """They would be those of the branch for inference, each as large as the activations."""
  names = []

  class Record(tf.train.SessionRunHook):
    def begin(self):
      names.extend(operation.name for operation in tf.get_default_graph().get_operations())

  model = sgd(sequential(layers.Reshape([2, 3, 1]), layers.Conv2D(3, 1),
                         layers.BatchNormalization(), layers.Flatten(), layers.Dense(1)))
  convert(model, tmp_path).train(in_batches((X, Y)), [Record()], steps=1)
  assert any('FusedBatchNormGradV3' in name for name in names)
  assert not [name for name in names if name.startswith('model/gradients/zeros')]


def test_eager_mode(tmp_path):
  """With a table, a model that was trained before, and sample weights on two replicas."""
  code = '''
import sys
import numpy as np
import tensorflow as tf
tf.compat.v1.enable_v2_behavior()
import estimator_train
column = tf.feature_column.indicator_column(
    tf.feature_column.categorical_column_with_vocabulary_list('s', ['x', 'y']))
inputs = {'a': tf.keras.Input((2,), name='a'),
          's': tf.keras.Input((1,), name='s', dtype='string')}
columns = [column, tf.feature_column.numeric_column('a', (2,))]
hidden = tf.keras.layers.DenseFeatures(columns)(inputs)
model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
model.compile(tf.keras.optimizers.SGD(.1), 'mse', metrics=['mae'])
features = {'a': np.arange(16.).reshape(8, 2) / 16, 's': np.array(list('xyzx' * 2))[:, None]}
labels, weights = np.arange(8.)[:, None], np.linspace(0, 1, 8)
model.fit(features, labels, 8, verbose=0)
estimator = estimator_train.convert(model, model_dir=sys.argv[1], num_cpu_replicas=2)
estimator.train(lambda: tf.data.Dataset.from_tensor_slices(
    ({'features': features, 'sample_weights': weights}, labels)).batch(4), steps=1)
model.train_on_batch(features, labels, sample_weight=weights)
found = [estimator.get_variable_value(name) for name in ('dense/kernel', 'dense/bias')]
for value, expected in zip(found, model.get_weights()):
  np.testing.assert_allclose(value, expected, atol=1e-6)
result = estimator.evaluate(
    lambda: tf.data.Dataset.from_tensor_slices((features, labels)).batch(8))
expected = model.evaluate(features, labels, 8, verbose=0)
np.testing.assert_allclose([result[name] for name in model.metrics_names], expected, rtol=1e-5)
'''
  done = run_process(sys.executable, '-c', code, tmp_path, env={'PYTHONPATH': str(ROOT)})
  assert done.returncode == 0, done.stderr


def test_a_session_of_the_user_in_a_finalized_graph(tmp_path):
  model = sgd(sequential(layers.Dense(1)))
  expected = model.predict(X)
  model.outputs[0].graph.finalize()
  estimator = convert(model, tmp_path, config=make_config(tmp_path))
  np.testing.assert_allclose(predict(estimator, in_batches(X))[0], expected, atol=1e-6)
  assert model.outputs[0].graph.finalized


def test_a_function_that_a_session_of_keras_has_run(tmp_path):
  """The session can still be used after the Estimator has computed gradients of the function."""
  @tensorflow.function
  def double(values):
    return 2 * values if tf.reduce_sum(values) > -1e6 else values

  model = sgd(sequential(layers.Dense(2), layers.Lambda(double), layers.Dense(1)))
  expected = model.predict(X)
  estimator = convert(model, tmp_path)
  estimator.train(in_batches((X, Y)), steps=1)
  model.set_weights([value + 1 for value in model.get_weights()])
  model.set_weights([value - 1 for value in model.get_weights()])
  np.testing.assert_allclose(model.predict(X), expected, atol=1e-5)
  assert np.abs(predict(estimator, in_batches(X))[0] - expected).max() > 1e-3

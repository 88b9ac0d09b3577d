"""Models that are hard to copy, evaluate or replicate: `convert` is like Keras, or says why not."""

import re

import numpy as np
import pytest
import tensorflow
import tensorflow.compat.v1 as tf
from like_keras import CLASSES, ONE_HOT, Subclass, X, Y, compare, convert, in_batches, predict
from tensorflow.python.keras import optimizers as former_optimizers

import estimator_train

keras = tf.keras
layers = tf.keras.layers
pytestmark = pytest.mark.usefixtures('own_graph')

SEQUENCES = np.random.RandomState(1).normal(size=(24, 5, 6)).astype(np.float32)
K = Dense = 10  # Names that Keras's modules have, too.


def sgd(model, loss='mse', **options):
  model.compile(keras.optimizers.SGD(.1), loss, **options)
  return model


def sequential(*items):
  return keras.Sequential([layers.InputLayer((6,)), *items])


def names_of_keras():
  class Dense(layers.Dense):
    """A layer of a user with the name of one of Keras's."""

    def call(self, inputs):
      return 3 * super().call(inputs)

  def relu(values):
    return keras.backend.relu(values, alpha=.5)

  return sequential(keras.Sequential([layers.Dense(3, activation='relu', input_shape=(6,))]),
                    Dense(3), layers.Lambda(lambda values: values * K), layers.Dense(1, relu))


def frozen_batch_norms():
  """Only the first output is normalized by the batch, as documented."""
  own, of_version_2 = (version.keras.layers.BatchNormalization(trainable=False)
                       for version in (tf, tensorflow.compat.v2))
  inputs = layers.Input((6,))
  outputs = [own(inputs), own(inputs, training=False), of_version_2(inputs)]
  return keras.Model(inputs, layers.Dense(1)(layers.concatenate(outputs)))


@pytest.mark.parametrize('make, find_frozen, replicas', [
    (names_of_keras, None, 1), (frozen_batch_norms, None, 1),
    (lambda: Subclass(layers.Dense(4, 'tanh'), layers.Dense(1)), lambda model: model.parts[0], 2),
    (lambda: sequential(keras.Sequential([layers.Dense(6, input_shape=(6,))]), layers.Dense(1)),
     lambda model: model.layers[0], 1)])
def test_like_keras(make, find_frozen, replicas, tmp_path):
  """Also with a layer that is frozen after the construction of the model."""
  model = sgd(make(), metrics=['mae'])
  model.train_on_batch(X, Y)
  if find_frozen:
    find_frozen(model).trainable = False
    sgd(model, metrics=['mae'])
  compare(model, tmp_path, (X, Y), replicas=[replicas], batch_size=24)
  assert sequential(layers.Dense(3)).output_shape == (None, 3), 'the names are those of Keras'


def test_masked_sequences_and_sums_over_the_batch(tmp_path):
  words = np.random.RandomState(0).randint(0, 6, (24, 5)).astype(np.int32)
  labels, weights = words[..., None], np.abs(SEQUENCES[..., 0])
  model = keras.Sequential([layers.Embedding(6, 3, mask_zero=True, input_length=5),
                            layers.LSTM(4, return_sequences=True), layers.Dense(6, 'softmax')])
  compare(sgd(model, 'sparse_categorical_crossentropy', metrics=['accuracy'],
              sample_weight_mode='temporal'), tmp_path / 'masked', (words, labels, weights),
          lambda size: in_batches(({'features': words, 'sample_weights': weights}, labels), size),
          eval_batch_size=7)
  losses = [convert(sgd(sequential(layers.Dense(1, kernel_initializer='ones')),
                        keras.losses.MeanSquaredError(reduction)),
                    tmp_path / reduction).evaluate(in_batches((X, Y), 7))['average_loss']
            for reduction in ('sum', 'auto')]
  assert losses[0] == pytest.approx(losses[1], rel=1e-5)


class Multiplied(keras.optimizers.SGD):
  """An optimizer whose configuration lacks an argument."""

  def __init__(self, factor=1., learning_rate=.01, name='Multiplied', **options):
    super().__init__(learning_rate, name=name, **options)
    self.factor = factor

  def _resource_apply_dense(self, grad, var, *args, **options):
    return super()._resource_apply_dense(grad * self.factor, var, *args, **options)


class Clipped(tf.train.GradientDescentOptimizer):
  """Clips gradients as users do."""

  def compute_gradients(self, *args, **options):
    return [(tf.clip_by_norm(gradient, .05), variable)
            for gradient, variable in super().compute_gradients(*args, **options)]


@pytest.mark.parametrize('make', [
    lambda: Multiplied(9.), lambda: keras.optimizers.SGD(1., clipnorm=.05),
    lambda: keras.optimizers.Adam(.1, clipvalue=.05), lambda: Clipped(.5),
    lambda: tensorflow.contrib.estimator.clip_gradients_by_norm(
        tf.train.GradientDescentOptimizer(.5), .05)])
def test_optimizers_that_change_gradients(make, tmp_path):
  model = sequential(layers.Dense(1, kernel_initializer='ones'))
  model.compile(make(), 'mse')
  compare(model, tmp_path, (X, Y), replicas=[2], predicts=False, tolerance=1e-6)


def test_sample_weights_and_labels_of_unknown_rank(tmp_path):
  weights = np.abs(Y[:, 0])

  def make_input_fn(size):
    return lambda: in_batches(({'features': X, 'sample_weights': weights}, ONE_HOT), size)().map(
        lambda x, y: (x, tf.py_func(lambda value: value, [y], tf.float32)))

  model = sgd(sequential(layers.Dense(2, 'softmax')), 'categorical_crossentropy', metrics=['mse'],
              weighted_metrics=['mae', 'categorical_accuracy'])
  results = compare(model, tmp_path, (X, ONE_HOT, weights), make_input_fn, eval_batch_size=7)
  # This accuracy is not weighted.
  assert results['accuracy'] == pytest.approx(
      (model.predict(X).argmax(-1) == ONE_HOT.argmax(-1)).mean())


def test_class_indices_of_unknown_rank(tmp_path):
  def make_input_fn(size):
    return lambda: in_batches((X, CLASSES), size)().map(
        lambda x, y: (x, tf.py_func(lambda value: value, [y], tf.int64)))

  model = sgd(sequential(layers.Dense(2, 'softmax')), 'sparse_categorical_crossentropy',
              metrics=['accuracy'])
  compare(model, tmp_path, (X, CLASSES), make_input_fn, replicas=[1, 2])


def city_column():
  return tf.feature_column.embedding_column(
      tf.feature_column.categorical_column_with_hash_bucket('city', 7), 3,
      initializer=tf.ones_initializer())


def cities(is_sparse):
  values = in_batches(({'city': np.array(['a', 'b', 'c'] * 8)[:, None]}, Y), 8)
  return lambda: values().map(lambda features, labels: (
      {'city': tf.strings.split(features['city'][:, 0])} if is_sparse else features, labels))


def test_sparse_features_of_a_model_without_known_inputs(tmp_path):
  """The model is built on the features, and trains as on dense ones."""
  weights = []
  for is_sparse in (False, True):
    with tf.Graph().as_default():
      model = sgd(keras.Sequential([layers.DenseFeatures([city_column()], name='features'),
                                    layers.Dense(1, kernel_initializer='ones', name='dense')]))
      estimator = convert(model, tmp_path / str(is_sparse), num_cpu_replicas=2)
      estimator.train(cities(is_sparse), steps=3)
      estimator.evaluate(cities(is_sparse))
    weights.append({name: estimator.get_variable_value(name)
                    for name in estimator.get_variable_names()})
  assert weights[0].keys() == weights[1].keys()
  for name, value in weights[0].items():
    np.testing.assert_allclose(weights[1][name], value, atol=1e-6, err_msg=name)


@pytest.mark.parametrize('is_sparse, message', [
    (False, 'city is string .*, expected sparse string'),
    (True, 'city is sparse string .*, expected string .*: convert them, such as with tf.sparse')])
def test_sparse_and_dense_features(is_sparse, message, tmp_path):
  city = keras.Input((1,), name='city', dtype=tf.string, sparse=not is_sparse)
  features = layers.DenseFeatures([city_column()])({'city': city})
  estimator = convert(sgd(keras.Model(city, layers.Dense(1)(features))), tmp_path)
  with pytest.raises(estimator_train.UserError, match='the features do not fit the model: input_fn'
                     ': ' + message):
    estimator.train(cities(is_sparse), steps=1)


def test_an_input_fn_without_features(tmp_path):
  estimator = convert(sgd(sequential(layers.Dense(1))), tmp_path)
  with pytest.raises(estimator_train.UserError, match='an input_fn must return features: '
                     'input_fn: None: return a tf.data.Dataset, or '):
    estimator.train(lambda: None, steps=1)


def test_an_input_with_a_tensor(tmp_path):
  inputs = keras.Input(tensor=tf.zeros([2, 6]), name='x')
  estimator = convert(sgd(keras.Model(inputs, layers.Dense(1)(inputs))), tmp_path)
  with pytest.raises(estimator_train.UserError, match=re.escape(
      'a model must take features: x: made by tf.keras.Input(tensor=...): give the shape of ')):
    estimator.train(in_batches((X, Y)), steps=1)


def test_an_optimizer_of_the_former_class(tmp_path):
  model = sequential(layers.Dense(1))
  model.compile(former_optimizers.SGD(), 'mse')
  with pytest.raises(ValueError, match='the class of the optimizer is not supported: tensorflow'
                     r'.python.keras.optimizers.SGD: give an optimizer of tf.keras.optimizers or '):
    convert(model, tmp_path).train(in_batches((X, Y)), steps=1)


def test_an_output_without_a_loss(tmp_path):
  inputs = layers.Input((6,))
  outputs = [layers.Dense(1, name='a')(inputs), layers.Dense(2, name='b')(inputs)]
  estimator = convert(sgd(keras.Model(inputs, outputs), {'a': 'mse'}), tmp_path)
  for labels in (Y, {'a': Y}, (Y, Y)):
    assert estimator.evaluate(in_batches((X, labels)))['examples'] == 24
  with pytest.raises(estimator_train.UserError, match='each trainable weight must affect the loss'):
    estimator.train(in_batches((X, Y)), steps=1)


def dense(units=1, loss='mse', optimizer='sgd'):
  model = sequential(layers.Dense(units, name='dense'))
  model.compile(optimizer, loss)
  return model


def with_unused_weight():
  """A subclass with a weight that its call does not use."""
  model = Subclass(layers.Dense(1))
  model.kernel = tf.Variable(1.)
  return sgd(model)


# A function that makes a model, what the batches contain, the number of replicas, and the error.
ERRORS = [
    (with_unused_weight, (X, Y), 0, 'each trainable weight must affect the loss'),
    (lambda: sgd(keras.Sequential([layers.LSTM(1, stateful=True, batch_input_shape=(24, 5, 6))])),
     (SEQUENCES, Y), 0, "does not keep the state .*'lstm' has stateful=True"),
    (lambda: dense(optimizer='nadam'), (X, Y), 1, 'does not support .*Nadam'),
    (lambda: dense(optimizer=tf.train.ProximalAdagradOptimizer(.1)), (X, Y), 2, 'ProximalAda'),
    (dense, (X, np.repeat(Y, 3, 1)), 0, r'dense\w* is float32 \(.*, 3\), expected .*, 1\)'),
    (lambda: dense(1, 'categorical_crossentropy'), (X, Y), 0, 'requires one output per class'),
    (lambda: dense(3, 'categorical_crossentropy'), (X, Y), 0, 'labels do not fit'),
    (dense, ({'z': X}, Y), 0, 'must have the names of the inputs.*: z, expected '),
    (dense, (X, {'z': Y}), 0, 'must have the names of the outputs.*: z, expected dense'),
    (dense, (SEQUENCES, Y), 0, 'features do not fit'),
    (dense, X, 0, 'require labels'),
    (dense, ({'features': X, 'sample_weights': X}, Y), 0, 'one sample weight for each example')]


@pytest.mark.parametrize('make, values, replicas, message', ERRORS)
def test_errors_name_the_cause(make, values, replicas, message, tmp_path):
  with pytest.raises(ValueError, match=message) as caught:
    convert(make(), tmp_path, num_cpu_replicas=replicas).train(in_batches(values), steps=1)
  assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize('make', [sequential, lambda layer: keras.Sequential([layer])])
def test_the_seed_of_the_config_determines_unused_weights(make, tmp_path):
  outputs = []
  for number, seed in enumerate((1, 1, 2)):
    with tf.Graph().as_default():
      keras.backend.set_session(None)
      estimator = convert(sgd(make(layers.Dense(1))), tmp_path / str(number), seed=seed)
      estimator.train(in_batches((X, Y)), steps=1)
      outputs.append(predict(estimator, in_batches((X, Y)))[0])
  np.testing.assert_array_equal(outputs[0], outputs[1])
  assert np.abs(outputs[2] - outputs[0]).max() > 1e-3


def test_warns_of_sums_over_the_batch_on_replicas(tmp_path, caplog):
  model = sequential(layers.Dense(3, activity_regularizer='l2'), layers.Dense(1))
  model.add_loss(tf.nn.l2_loss(model.outputs[0]))
  convert(sgd(model), tmp_path, num_cpu_replicas=2).train(in_batches((X, Y), 12), steps=1)
  assert caplog.text.count('do not train like one') == 1

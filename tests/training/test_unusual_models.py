"""Models that are hard to copy, evaluate or replicate: `convert` is like Keras, or says why not."""

import numpy as np
import pytest
import tensorflow
import tensorflow.compat.v1 as tf
from numpy.testing import assert_allclose

import estimator_train

keras = tf.keras
layers = tf.keras.layers

RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(24, 6)).astype(np.float32)
SEQUENCES = RANDOM.normal(size=(24, 5, 6)).astype(np.float32)
Y = RANDOM.normal(size=(24, 1)).astype(np.float32)
K = Dense = 10  # Names that Keras's modules have, too.


@pytest.fixture(autouse=True)
def own_graph():
  """A new default graph and Keras session for each test."""
  with tf.Graph().as_default():
    keras.backend.set_session(None)
    yield
    keras.backend.set_session(None)


def batches(features=X, labels=Y, batch_size=24, drop_remainder=False):
  return lambda: tf.data.Dataset.from_tensor_slices((features, labels)).batch(
      batch_size, drop_remainder=drop_remainder)


def outputs_of(estimator, input_fn):
  return np.array([list(output.values())[0] for output in estimator.predict(input_fn)])


def sgd(model, loss='mse', **options):
  model.compile(keras.optimizers.SGD(.1), loss, **options)
  return model


def sequential(*items):
  return keras.Sequential([layers.InputLayer((6,)), *items])


def layer_used_twice():
  layer = layers.Dense(6, activation='tanh')
  return sequential(layer, layer, layers.Dense(1))


def layer_inside_and_outside_of_an_inner_model():
  inputs, layer = layers.Input((6,)), layers.Dense(6, activation='tanh')
  inner = keras.Sequential([layers.InputLayer((6,)), layer, layers.Dense(6)])
  return keras.Model(inputs, layers.Dense(1)(layer(inner(inputs))))


def loss_of_the_model_as_a_function():
  model = sequential(layers.Dense(4), layers.Dense(1))
  for layer in model.layers:
    model.add_loss(lambda layer=layer: .5 * tf.nn.l2_loss(layer.kernel))
  return model


def loss_of_a_layer_as_a_function():
  layer = layers.Dense(4, kernel_regularizer='l2')
  layer.add_loss(lambda: .5 * tf.nn.l2_loss(layer.kernel))
  return sequential(layer, layers.Dense(1))


class Scaled(layers.Dense):
  """A layer whose get_config lacks an argument."""

  def __init__(self, units, scale=1., **options):
    super().__init__(units, **options)
    self.scale, self.is_initialized = scale, False

  def build(self, input_shape):
    if not self.is_initialized:  # This attribute must not be copied before `build`.
      super().build(input_shape)
    self.is_initialized = True

  def call(self, inputs):
    return self.scale * super().call(inputs)


def attribute_set_later():
  layer = Scaled(1)
  layer.scale = 3.
  return sequential(layer)


class Constant(keras.initializers.Initializer):
  """An initializer without a configuration."""

  def __init__(self, value=0.):
    self.value = value

  def __call__(self, shape, dtype=None, partition_info=None):
    return tf.fill(shape, self.value)

  def get_config(self):
    return {}


class Cell(layers.SimpleRNNCell):
  """A cell of a user, with an argument that is not in its configuration."""

  def __init__(self, units, factor=1., **options):
    super().__init__(units, **options)
    self.factor = factor

  def call(self, inputs, states, training=None):
    output, states = super().call(inputs * self.factor, states, training)
    return output, states


class Branches(keras.Model):
  """A subclass with a list, a dict, an inner model and an attribute."""

  def __init__(self, scale=1.):
    super().__init__()
    self.scale = scale
    self.hidden = [layers.Dense(4, activation='tanh'), Scaled(4, 2.)]
    self.by_name = {'a': layers.Dense(3), 'b': keras.Sequential([layers.Dense(3)])}
    self.top = layers.Dense(1)

  def call(self, inputs):
    for layer in self.hidden:
      inputs = layer(inputs)
    return self.scale * self.top(self.by_name['a'](inputs) + self.by_name['b'](inputs))


class WithConfig(Branches):
  """A subclass whose configuration lacks its argument."""

  def get_config(self):
    return {}

  @classmethod
  def from_config(cls, config):
    return cls()


MODELS = [
    layer_used_twice, layer_inside_and_outside_of_an_inner_model,
    loss_of_the_model_as_a_function, loss_of_a_layer_as_a_function, attribute_set_later,
    lambda: sequential(Scaled(4, 5.), layers.Dense(1, kernel_initializer=Constant(.5))),
    lambda: sequential(layers.Lambda(lambda values: values * 2),
                       layers.Dense(1, activation=tf.exp)),
    lambda: sequential(layers.Dense(4, activation=lambda values: values * 2),
                       layers.Dense(4, activation=tf.nn.leaky_relu),
                       layers.Dense(1, activation=lambda values: values * 3)),
    lambda: Branches(2.), lambda: WithConfig(2.),
    lambda: keras.Sequential([layers.Reshape((3, 2), input_shape=(6,)),
                              layers.Bidirectional(layers.RNN(Cell(3, 2.))), layers.Dense(1)])]


@pytest.mark.parametrize('make', MODELS)
@pytest.mark.parametrize('replicas', [0, 2])
def test_like_keras(make, replicas, tmp_path):
  model = sgd(make(), metrics=['mae'])
  expected_loss = model.evaluate(X, Y, batch_size=24, verbose=0)[0]
  expected = model.predict(X)
  estimator = estimator_train.convert(model, model_dir=str(tmp_path), num_cpu_replicas=replicas)
  assert_allclose(outputs_of(estimator, batches()), expected, atol=1e-5)
  assert estimator.evaluate(batches())['loss'] == pytest.approx(expected_loss, rel=1e-5)
  model.train_on_batch(X, Y)
  estimator.train(batches(batch_size=24 // (replicas or 1)), steps=1)
  assert_allclose(outputs_of(estimator, batches()), model.predict(X), rtol=1e-4, atol=1e-5)


def test_a_lambda_does_not_change_the_names_of_keras(tmp_path):
  model = sgd(sequential(layers.Lambda(lambda values: values * K), layers.Dense(1)))
  estimator_train.convert(model, model_dir=str(tmp_path)).evaluate(batches())
  assert sequential(layers.Dense(3)).output_shape == (None, 3)


@pytest.mark.parametrize('batch_size', [8, 24])
def test_batches_of_a_static_size_count_once(batch_size, tmp_path):
  model = sgd(sequential(layers.Dense(1)), metrics=['mae', keras.metrics.RootMeanSquaredError('r')])
  expected = dict(zip(model.metrics_names, model.evaluate(X, Y, batch_size=24, verbose=0)))
  result = estimator_train.convert(model, model_dir=str(tmp_path)).evaluate(
      batches(batch_size=batch_size, drop_remainder=True))
  assert result['examples'] == 24
  for name, value in [*expected.items(), ('average_loss', expected['loss'])]:
    assert result[name] == pytest.approx(value, rel=1e-5), name


class Count(keras.metrics.Metric):
  """Counts outputs above a threshold, which is missing in its configuration."""

  def __init__(self, threshold=100., name='count', **options):
    super().__init__(name=name, **options)
    self.threshold, self.count = threshold, self.add_weight('c', initializer='zeros')

  def update_state(self, y_true, y_pred, sample_weight=None):
    return self.count.assign_add(tf.reduce_sum(tf.cast(y_pred > self.threshold, tf.float32)))

  def result(self):
    return self.count.read_value()


class Squares(keras.metrics.Mean):
  """The mean of the squared outputs."""

  def update_state(self, y_true, y_pred, sample_weight=None):
    return super().update_state(tf.square(y_pred), sample_weight)


@pytest.mark.parametrize('make_metrics', [
    lambda: {'a': [keras.metrics.AUC(name='auc'), Count(-100.)], 'b': [Squares()]},
    lambda: [[keras.metrics.AUC(name='auc')], ['mae', Count(-100.)]],
    lambda: {'a': keras.metrics.AUC(name='auc'), 'b': Count(-100.)}])
def test_metric_objects_and_added_metrics(make_metrics, tmp_path):
  inputs = layers.Input((6,))
  hidden = layers.Dense(3)(inputs)
  model = keras.Model(inputs, [layers.Dense(1, activation='sigmoid', name=name)(hidden)
                               for name in 'ab'])
  model.add_metric(hidden, name='hidden', aggregation='mean')
  model = keras.Model(inputs, [layers.Lambda(tf.identity, name=name)(output) for name, output
                               in zip('ab', model(inputs))])  # With an inner model.
  labels = np.float32(Y > 0)
  sgd(model, metrics=make_metrics())
  expected = dict(zip(model.metrics_names, model.evaluate(X, [labels, labels], verbose=0)))
  result = estimator_train.convert(model, model_dir=str(tmp_path)).evaluate(
      batches(labels=(labels, labels), batch_size=5))
  for name in set(expected) - {'loss'}:
    assert result[name] == pytest.approx(expected[name], rel=1e-4), name


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
  kernels = []
  for replicas in (1, 2):
    with tf.Graph().as_default():
      keras.backend.set_session(None)
      model = sequential(layers.Dense(1, kernel_initializer='ones', name='d'))
      model.compile(make(), 'mse')
      estimator = estimator_train.convert(model, model_dir=str(tmp_path / str(replicas)),
                                          num_cpu_replicas=replicas)
      estimator.train(batches(batch_size=8 // replicas), steps=3)
      kernels.append(estimator.get_variable_value('d/kernel'))
      if not isinstance(model.optimizer, keras.optimizers.Optimizer):
        continue
      for first in (0, 8, 16):
        model.train_on_batch(X[first:first + 8], Y[first:first + 8])
      assert_allclose(kernels[-1], model.get_weights()[0], atol=1e-6)
  assert_allclose(*kernels, atol=1e-6)


def without_inputs():
  return keras.Sequential([layers.Dense(1, kernel_initializer='ones')])


@pytest.mark.parametrize('make', [
    lambda: sequential(layers.Dense(1, kernel_initializer='ones')), without_inputs, Branches])
@pytest.mark.parametrize('weights', [None, (-1,), (-1, 1)])
@pytest.mark.parametrize('hides_rank', [False, True])
def test_labels_and_weights_of_rank_1(make, weights, hides_rank, tmp_path):
  model = sgd(make(), weighted_metrics=['mse'])
  sample_weights = np.abs(Y[:, 0])
  features = X if weights is None else {
      'features': X, 'sample_weights': sample_weights.reshape(weights)}

  def input_fn():
    dataset = batches(features, Y[:, 0], 5)()
    return dataset if not hides_rank else dataset.map(
        lambda x, y: (x, tf.py_func(lambda value: value, [y], tf.float32)))

  estimator = estimator_train.convert(model, model_dir=str(tmp_path))
  estimator.train(input_fn, steps=1)
  errors = np.square(outputs_of(estimator, batches(X)) - Y)[:, 0]
  expected = errors.mean() if weights is None else (sample_weights * errors).mean()
  assert estimator.evaluate(input_fn)['average_loss'] == pytest.approx(expected, rel=1e-5)


def test_temporal_weights(tmp_path):
  model = keras.Sequential([layers.InputLayer((5, 6)), layers.Dense(1)])
  weights, labels = np.abs(SEQUENCES[..., 0]), SEQUENCES[..., :1]
  sgd(model, sample_weight_mode='temporal')
  expected = model.evaluate(SEQUENCES, labels, sample_weight=weights, batch_size=24, verbose=0)
  result = estimator_train.convert(model, model_dir=str(tmp_path)).evaluate(
      batches({'features': SEQUENCES, 'sample_weights': weights}, labels, 7))
  assert result['average_loss'] == pytest.approx(expected, rel=1e-5)


def two_outputs(loss):
  inputs = layers.Input((6,), name='x')
  outputs = [layers.Dense(1, name='a')(inputs), layers.Dense(2, name='b')(inputs)]
  return sgd(keras.Model(inputs, outputs), loss)


def test_an_output_without_a_loss(tmp_path):
  estimator = estimator_train.convert(two_outputs({'a': 'mse'}), model_dir=str(tmp_path))
  for labels in (Y, {'a': Y}, (Y, Y)):
    assert estimator.evaluate(batches(labels=labels))['examples'] == 24
  with pytest.raises(estimator_train.UserError, match='each trainable weight must affect the loss'):
    estimator.train(batches(), steps=1)


def test_features_in_a_dict_without_known_inputs(tmp_path):
  class Concatenated(keras.Model):
    """Takes a dict of features, one of which is a number."""

    def __init__(self):
      super().__init__()
      self.top = layers.Dense(1)

    def call(self, inputs):
      return self.top(tf.concat([inputs['a'], inputs['b']], -1))

  estimator = estimator_train.convert(sgd(Concatenated()), model_dir=str(tmp_path))
  input_fn = batches({'a': X, 'b': X[:, 0]})
  estimator.train(input_fn, steps=1)
  assert outputs_of(estimator, input_fn).shape == (24, 1)


def captured_tensor():
  factor = tf.constant(2.)
  return sgd(sequential(layers.Lambda(lambda values: values * factor), layers.Dense(1)))


def captured_by_the_loss():
  factor = tf.constant(2.)
  return sgd(sequential(layers.Dense(1)), lambda true, outputs: factor * tf.square(true - outputs))


def compiled(optimizer, **options):
  model = sequential(layers.Dense(1))
  model.compile(optimizer(), 'mse', **options)
  return model


class OwnWeights(keras.Model):
  """A subclass with a weight outside of layers."""

  def __init__(self):
    super().__init__()
    self.kernel = tf.Variable(tf.ones((6, 1)))

  def call(self, inputs):
    return tf.matmul(inputs, self.kernel)


@pytest.mark.parametrize('make, input_fn, replicas, message', [
    (captured_tensor, batches(), 0, r'tensors .* made outside.*test_unusual_models.py:\d+: Tensor'),
    (captured_by_the_loss, batches(), 0, r'made outside.*test_unusual_models.py:\d+: Tensor'),
    (lambda: sgd(OwnWeights()), batches(), 0, 'outside of its layers must define get_config'),
    (lambda: sgd(keras.Sequential([layers.LSTM(1, stateful=True, batch_input_shape=(8, 5, 6))])),
     batches(SEQUENCES, batch_size=8), 0, "does not keep the state .*'lstm' has stateful=True"),
    (lambda: compiled(keras.optimizers.Nadam), batches(), 1, 'does not support .*Nadam'),
    (lambda: compiled(lambda: tf.train.FtrlOptimizer(.1)), batches(), 2, 'strategies.*FtrlOpt'),
    (lambda: compiled(lambda: tf.train.ProximalAdagradOptimizer(.1)), batches(), 2, 'ProximalAda'),
    (lambda: sgd(sequential(layers.Dense(1))), batches(labels=np.repeat(Y, 3, 1)), 0,
     r'labels do not fit the model: input_fn: dense\w* is float32 \(.*, 3\), expected .*, 1\)'),
    (lambda: sgd(sequential(layers.Dense(3), layers.Lambda(lambda x: tf.reduce_sum(x, -1)))),
     batches(), 0, 'labels do not fit'),
    (lambda: sgd(sequential(layers.Dense(1)), 'categorical_crossentropy'), batches(), 0,
     'requires one output per class'),
    (lambda: sgd(sequential(layers.Dense(3)), 'categorical_crossentropy'), batches(), 0,
     'labels do not fit'),
    (lambda: sgd(sequential(layers.Dense(1))), batches({'z': X}), 0, 'of the inputs.*: z, exp'),
    (lambda: sgd(sequential(layers.Dense(1))), batches(SEQUENCES), 0, 'features do not fit'),
    (lambda: sgd(sequential(layers.Dense(1))), lambda: tf.data.Dataset.from_tensors(X), 0,
     'require labels'),
    (lambda: sgd(sequential(layers.Dense(1))),
     batches({'features': X, 'sample_weights': X}), 0, 'one sample weight for each example'),
])
def test_errors_name_the_cause(make, input_fn, replicas, message, tmp_path):
  with pytest.raises(ValueError, match=message) as caught:
    estimator_train.convert(make(), model_dir=str(tmp_path), num_cpu_replicas=replicas).train(
        input_fn, steps=1)
  assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize('make', [sequential, lambda layer: keras.Sequential([layer])])
def test_the_seed_of_the_config_determines_unused_weights(make, tmp_path):
  outputs = []
  for number, seed in enumerate((1, 1, 2)):
    with tf.Graph().as_default():
      keras.backend.set_session(None)
      model = sgd(make(layers.Dense(1)))
      estimator = estimator_train.convert(model, config=tf.estimator.RunConfig(
          str(tmp_path / str(number)), tf_random_seed=seed))
      estimator.train(batches(), steps=1)
      outputs.append(outputs_of(estimator, batches()))
  np.testing.assert_array_equal(outputs[0], outputs[1])
  assert np.abs(outputs[2] - outputs[0]).max() > 1e-3


@pytest.mark.parametrize('make_loss, is_reported', [
    (lambda hidden: 1e-3 * tf.reduce_sum(tf.square(hidden)), True),
    (tf.nn.l2_loss, True),
    (lambda hidden: tf.reduce_mean(tf.reduce_sum(tf.square(hidden), -1)), False)])
def test_warns_of_sums_over_the_batch_on_replicas(make_loss, is_reported, tmp_path, caplog):
  inputs = layers.Input((6,))
  hidden = layers.Dense(3, activity_regularizer='l2')(inputs)
  model = keras.Model(inputs, layers.Dense(1)(hidden))
  model.add_loss(make_loss(hidden))
  estimator = estimator_train.convert(sgd(model), model_dir=str(tmp_path), num_cpu_replicas=2)
  estimator.train(batches(batch_size=12), steps=1)
  assert caplog.text.count('do not train like one') == int(is_reported)

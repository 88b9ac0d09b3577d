"""`convert` in place of model_to_estimator: what scripts of users pass to it, and its results."""

import functools
import json
import os
import tempfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from numpy.testing import assert_allclose

import estimator_train

keras = tf.keras
layers = tf.keras.layers

RANDOM = np.random.RandomState(0)
FEATURES = RANDOM.normal(size=(200, 10)).astype(np.float32)
CLASSES = (FEATURES[:, 0] > 0).astype(int)
ONE_HOT = np.eye(2, dtype=np.float32)[CLASSES]


@pytest.fixture(autouse=True)
def own_graph():
  """A new default graph and Keras session for each test."""
  with tf.Graph().as_default():
    keras.backend.set_session(None)
    yield
    keras.backend.set_session(None)
    tf.summary.FileWriterCache.clear()


@pytest.fixture
def config(tmp_path):
  return tf.estimator.RunConfig(model_dir=str(tmp_path / 'run'), tf_random_seed=1)


def sequential(**options):
  return keras.Sequential([layers.Dense(16, activation='relu', input_shape=(10,), **options),
                           layers.Dropout(.1), layers.Dense(2, activation='softmax')])


def functional(activation='relu'):
  inputs = layers.Input((10,), name='vector')
  hidden = layers.Dropout(.1)(layers.Dense(16, activation=activation)(inputs))
  return keras.Model(inputs, layers.Dense(2, activation='softmax', name='class')(hidden))


class Subclass(keras.Model):
  """A model that is defined by its `call`."""

  def __init__(self):
    super().__init__()
    self.hidden = layers.Dense(16, activation='relu')
    self.top = layers.Dense(2, activation='softmax')

  def call(self, inputs):
    return self.top(self.hidden(inputs))


class ConfigurableSubclass(Subclass):
  """A model that can be created again from its configuration."""

  def get_config(self):
    return {}

  @classmethod
  def from_config(cls, config):
    return cls()


class VariableHook(tf.train.SessionRunHook):
  """A hook that creates a variable when the graph is otherwise complete."""

  def begin(self):
    tf.get_variable('of_a_hook', [1])


def make_input_fn(features=FEATURES, labels=ONE_HOT, epochs=None, batch_size=16):
  values = features if labels is None else (features, labels)
  return lambda: tf.data.Dataset.from_tensor_slices(values).repeat(epochs).batch(batch_size)


def compiled(make=sequential, optimizer='rmsprop', loss='categorical_crossentropy', **options):
  model = make()
  model.compile(optimizer, loss, **options)
  return model


def predicted(estimator, input_fn):
  return np.array([list(prediction.values()) for prediction in estimator.predict(input_fn)])[:, 0]


@pytest.mark.parametrize('make, checkpoint_format, optimizer, fits, hook', [
    (functional, 'saver', 'rmsprop', False, False),
    (sequential, 'saver', 'rmsprop', False, True),
    (sequential, 'saver', 'tf', True, True),
    (functional, 'checkpoint', 'rmsprop', False, False),
    (sequential, 'checkpoint', 'tf', True, False),
    (Subclass, 'saver', 'tf', False, True),
    (Subclass, 'saver', 'rmsprop', True, False),
    (ConfigurableSubclass, 'saver', 'tf', True, True),
])
def test_trains_any_kind_of_model(config, make, checkpoint_format, optimizer, fits, hook):
  if optimizer == 'tf':
    optimizer = tf.train.RMSPropOptimizer(1e-3)
  model = compiled(make, optimizer, metrics=['accuracy'])
  if fits:
    model.fit(FEATURES, ONE_HOT, verbose=0)
  estimator = estimator_train.convert(model, config=config, checkpoint_format=checkpoint_format)
  results = []
  for _ in range(2):  # The second time from a checkpoint.
    estimator.train(make_input_fn(), steps=12, hooks=[VariableHook()] if hook else None)
    results.append(estimator.evaluate(make_input_fn(epochs=1)))
  assert results[1]['loss'] < results[0]['loss']
  assert results[1]['global_step'] == 24
  assert results[1]['examples'] == 200


def test_weights_of_a_model_are_those_of_its_estimator(config):
  model = compiled()  # Keras has no session yet, and so the weights have no values.
  estimator = estimator_train.convert(model, config=config)
  expected = model.predict(FEATURES)
  assert_allclose(predicted(estimator, make_input_fn(labels=None, epochs=1)), expected, atol=1e-6)
  again = estimator_train.convert(model, model_dir=tempfile.mkdtemp(dir=config.model_dir))
  assert_allclose(predicted(again, make_input_fn(labels=None, epochs=1)), expected, atol=1e-6)


def test_weights_of_a_new_model_replace_initial_weights_of_another_run(config):
  for bias in (3., 5.):
    model = compiled(functools.partial(
        sequential, bias_initializer=keras.initializers.constant(bias)))
    estimator = estimator_train.convert(model, config=config)
    expected = model.predict(FEATURES)
    assert_allclose(predicted(estimator, make_input_fn(labels=None, epochs=1)), expected, atol=1e-6)


def test_files_of_users_next_to_the_initial_weights_are_kept(config):
  model = compiled()
  model.fit(FEATURES, ONE_HOT, verbose=0)
  path = os.path.join(config.model_dir, 'keras', 'own.ckpt')
  model.save_weights(path)
  estimator_train.convert(model, config=config)
  expected = model.get_weights()
  model.set_weights([np.zeros_like(weight) for weight in expected])
  model.load_weights(path)
  for weight, value in zip(model.get_weights(), expected):
    np.testing.assert_array_equal(weight, value)


@pytest.mark.parametrize('checkpoint_format', ['saver', 'checkpoint'])
def test_models_with_layers_of_the_same_names(tmp_path, checkpoint_format):
  estimators, expected = [], []
  for number in range(3):  # As a notebook's cell that is executed again.
    inputs = layers.Input((10,), name='vector')
    outputs = layers.Dense(2, activation='softmax', name='a')(
        layers.BatchNormalization(name='a_1')(layers.Dense(3, name='b')(inputs)))
    model = compiled(functools.partial(keras.Model, inputs, outputs), 'sgd')
    model.fit(FEATURES, ONE_HOT, verbose=0)
    estimators.append(estimator_train.convert(model, model_dir=str(tmp_path / str(number)),
                                              checkpoint_format=checkpoint_format))
    expected.append(model.predict(FEATURES))
  for estimator, values in zip(estimators, expected):
    before = predicted(estimator, make_input_fn(labels=None, epochs=1))
    assert_allclose(before, values, atol=1e-6)
    estimator.train(make_input_fn(), steps=1)
    assert estimator.evaluate(make_input_fn(epochs=1))['examples'] == 200


def test_a_checkpoint_of_another_model(config):
  estimator_train.convert(compiled(functional), config=config).train(make_input_fn(), steps=1)
  wider = compiled(lambda: keras.Sequential([
      layers.Dense(8, input_shape=(10,), name='dense'), layers.Dense(2, name='class')]))
  with pytest.raises(ValueError, match=r'another model: .*dense/kernel of shape \[10, 16\], not '):
    estimator_train.convert(wider, config=config)


@pytest.mark.parametrize('checkpoint_format', ['saver', 'checkpoint'])
def test_the_learning_rate_of_a_resumed_training_is_that_of_the_model(config, checkpoint_format):
  biases = []
  for rate in (.1, 0.):
    with tf.Graph().as_default():
      keras.backend.set_session(None)
      estimator = estimator_train.convert(
          compiled(functional, keras.optimizers.SGD(rate)), config=config,
          checkpoint_format=checkpoint_format)
      estimator.train(make_input_fn(), steps=2)
      biases.append(predicted(estimator, make_input_fn(labels=None, epochs=1)))
  np.testing.assert_array_equal(*biases)


def test_a_model_from_a_file(tmp_path, config):
  model = compiled(functional)
  model.fit(FEATURES, ONE_HOT, verbose=0)
  for path in (str(tmp_path / 'a model.h5'), tmp_path / 'b.h5'):
    model.save(str(path))
    estimator = estimator_train.convert(keras_model_path=path, config=config)
    assert_allclose(predicted(estimator, make_input_fn(labels=None, epochs=1)),
                    model.predict(FEATURES), atol=1e-6)
  remote = 'file://' + str(tmp_path / 'a model.h5')
  estimator_train.convert(keras_model_path=remote, model_dir=str(tmp_path / 'remote'))


def relu_six(values):
  return keras.backend.relu(values, max_value=6)


class Halved(keras.initializers.Initializer):
  """An initializer of a user."""

  def __call__(self, shape, dtype=None, partition_info=None):
    return tf.fill(shape, .5)

  def get_config(self):
    return {}


class Falling(keras.optimizers.schedules.LearningRateSchedule):
  """A learning rate schedule of a user."""

  def __call__(self, step):
    return .1 / (1 + tf.cast(step, tf.float32))

  def get_config(self):
    return {}


def test_functions_and_classes_of_users_are_found(config):
  model = keras.Sequential([
      layers.Dense(4, activation=relu_six, input_shape=(10,)),
      layers.Lambda(lambda values: values * 2),
      layers.Lambda(lambda values: values / 2),
      keras.Sequential([layers.Dense(3, activation=lambda values: values + 1,
                                     kernel_initializer=Halved())]),
      layers.Dense(2, activation='softmax')])
  model.compile(keras.optimizers.SGD(Falling()), 'categorical_crossentropy')
  estimator = estimator_train.convert(model, config=config)
  assert_allclose(predicted(estimator, make_input_fn(labels=None, epochs=1)),
                  model.predict(FEATURES), atol=1e-6)
  estimator.train(make_input_fn(), steps=2)


def own_loss(true, outputs):
  return tf.reduce_sum(tf.square(true - outputs), -1)


class Largest(keras.metrics.Metric):
  """A metric of a user: the largest output."""

  def __init__(self, name='largest', dtype=None):
    super().__init__(name, dtype)
    self.largest = self.add_weight('largest', initializer='zeros')

  def update_state(self, y_true, y_pred, sample_weight=None):
    return self.largest.assign(tf.maximum(self.largest, tf.reduce_max(y_pred)))

  def result(self):
    return self.largest.read_value()


def test_losses_and_metrics_of_users(config):
  model = compiled(loss=own_loss, metrics=[Largest()])
  estimator = estimator_train.convert(model, config=config)
  result = estimator.evaluate(make_input_fn(epochs=1, batch_size=200))
  outputs = model.predict(FEATURES)
  assert result['largest'] == pytest.approx(outputs.max())
  assert result['loss'] == pytest.approx(np.square(ONE_HOT - outputs).sum(-1).mean(), rel=1e-5)


def test_metrics_are_those_of_keras(config):
  names = ['binary_accuracy', 'categorical_accuracy', 'categorical_crossentropy', 'hinge',
           'kullback_leibler_divergence', 'mean_absolute_error', 'mean_squared_logarithmic_error',
           'poisson', 'squared_hinge', 'top_k_categorical_accuracy']
  model = compiled(functional, metrics=names)
  model.fit(FEATURES, ONE_HOT, verbose=0)
  expected = dict(zip(model.metrics_names,
                      model.evaluate(FEATURES, ONE_HOT, batch_size=32, verbose=0)))
  result = estimator_train.convert(model, config=config).evaluate(
      make_input_fn(epochs=1, batch_size=32))
  for name in names:
    assert result[name] == pytest.approx(expected[name], rel=1e-4), name
  assert result['average_loss'] == pytest.approx(expected['loss'], rel=1e-5)


def accuracy(true, outputs):
  return keras.metrics.top_k_categorical_accuracy(true, outputs, k=2)


def test_a_metric_of_the_user_named_accuracy_is_reported(config):
  model = compiled(metrics=[accuracy])
  result = estimator_train.convert(model, config=config).evaluate(make_input_fn(epochs=1))
  assert result['accuracy'] == 1  # Both of the two classes.
  assert result['confusion_matrix'].trace() < 200


def two_inputs_and_outputs():
  numbers = layers.Input((4,), name='numbers')
  text = layers.Input((2,), dtype=tf.string, name='text')
  parsed = layers.Lambda(tf.strings.to_number)(text)
  merged = layers.concatenate([layers.Dense(3, name='dense')(numbers), parsed])
  return keras.Model([numbers, text], [layers.Dense(3, activation='softmax', name='kind')(merged),
                                       layers.Dense(1, name='size')(merged)])


def two_of_each(form):
  random = np.random.RandomState(1)
  features = {'numbers': random.normal(size=(40, 4)).astype(np.float32),
              'text': random.randint(9, size=(40, 2)).astype(str)}
  labels = {'kind': np.eye(3, dtype=np.float32)[random.randint(3, size=40)],
            'size': random.normal(size=(40, 1)).astype(np.float32)}
  if form is tuple:
    return tuple(features.values()), tuple(labels.values())
  return features, labels


@pytest.mark.parametrize('form', [dict, tuple])
@pytest.mark.parametrize('as_dataset', [True, False])
def test_several_inputs_and_outputs(config, form, as_dataset):
  model = compiled(two_inputs_and_outputs, keras.optimizers.SGD(.001), {
      'kind': 'categorical_crossentropy', 'size': 'mse'}, metrics={'kind': 'categorical_accuracy'})
  estimator = estimator_train.convert(model, config=config)
  features, labels = two_of_each(form)

  def input_fn():
    if as_dataset:
      return tf.data.Dataset.from_tensors((features, labels))
    if form is tuple:
      return list(features), list(labels)
    return features, labels

  before = estimator.evaluate(input_fn, steps=1)
  estimator.train(lambda: input_fn().repeat() if as_dataset else input_fn(), steps=5)
  after = estimator.evaluate(input_fn, steps=1)
  assert after['loss'] < before['loss']
  assert 'kind_categorical_accuracy' in after
  if as_dataset:
    prediction = next(estimator.predict(input_fn))
    assert prediction['kind'].shape == (3,) and prediction['size'].shape == (1,)


@pytest.mark.parametrize('loss, labels', [
    ('categorical_crossentropy', ONE_HOT), ('sparse_categorical_crossentropy', CLASSES)])
def test_labels_in_a_dict(config, loss, labels):
  estimator = estimator_train.convert(compiled(functional, loss=loss), config=config)
  input_fn = make_input_fn({'vector': FEATURES}, {'class': labels}, epochs=1)
  estimator.train(input_fn)
  result = estimator.evaluate(input_fn)
  assert result['examples'] == 200 and 0 < result['average_loss'] < 2


@pytest.mark.parametrize('features, labels, name', [
    ({'other': FEATURES}, ONE_HOT, 'vector'), ({'vector': FEATURES}, {'other': ONE_HOT}, 'class')])
def test_names_that_the_model_does_not_have(config, features, labels, name):
  estimator = estimator_train.convert(compiled(functional), config=config)
  with pytest.raises(ValueError, match='must have the names of the .*: other, expected ' + name):
    estimator.train(make_input_fn(features, labels), steps=1)


def test_sample_weights(config):
  model = compiled(functional)
  weights = RANDOM.uniform(size=200).astype(np.float32)
  outputs = model.predict(FEATURES)
  per_example = -np.log(outputs[np.arange(200), CLASSES])
  estimator = estimator_train.convert(model, config=config)
  features = {'features': FEATURES, 'sample_weights': weights}
  for batch_size in (200, 64):
    result = estimator.evaluate(make_input_fn(features, epochs=1, batch_size=batch_size))
    assert result['average_loss'] == pytest.approx((weights * per_example).mean(), rel=1e-5)
    assert result['accuracy'] == pytest.approx((outputs.argmax(-1) == CLASSES).mean())
  whole = estimator.evaluate(make_input_fn(features, epochs=1, batch_size=200))
  assert whole['loss'] == pytest.approx(whole['average_loss'], rel=1e-5)


@pytest.mark.parametrize('batch_size', [200, 64])
def test_weighted_metrics(config, batch_size):
  model = compiled(functional, metrics=['mse'], weighted_metrics=['categorical_accuracy', 'mae'])
  weights = RANDOM.uniform(size=200).astype(np.float32)
  outputs = model.predict(FEATURES)
  result = estimator_train.convert(model, config=config).evaluate(make_input_fn(
      {'features': FEATURES, 'sample_weights': weights}, epochs=1, batch_size=batch_size))
  errors = outputs - ONE_HOT
  # The names of the metrics are others with the behavior of TensorFlow 2.
  assert [result[name] for name in model.metrics_names[1:]] == pytest.approx([
      np.square(errors).mean(), np.average(outputs.argmax(-1) == CLASSES, weights=weights),
      np.average(np.abs(errors).mean(-1), weights=weights)], rel=1e-5)


def test_labels_and_outputs_of_unknown_shape(config):
  model = compiled(functools.partial(keras.Sequential, [
      layers.Dense(2, activation='softmax', input_shape=(10,)),
      layers.Lambda(lambda values: tf.reshape(values, tf.shape(values)))]))

  def input_fn():
    return make_input_fn(epochs=1)().map(
        lambda features, labels: (features, tf.py_func(lambda value: value, [labels], tf.float32)))

  result = estimator_train.convert(model, config=config).evaluate(input_fn)
  outputs = model.predict(FEATURES)
  assert result['average_loss'] == pytest.approx(
      -np.log(outputs[np.arange(200), CLASSES]).mean(), rel=1e-5)


@pytest.mark.parametrize('make_scope', [tf.name_scope, tf.variable_scope])
@pytest.mark.parametrize('checkpoint_format', ['saver', 'checkpoint'])
@pytest.mark.parametrize('replicas', [0, 2])
def test_a_scope_of_the_input_fn_has_the_name_of_a_layer(config, make_scope, checkpoint_format,
                                                         replicas):
  def input_fn():
    with make_scope('class'):
      return make_input_fn()()

  estimator = estimator_train.convert(compiled(functional), config=config,
                                      checkpoint_format=checkpoint_format,
                                      num_cpu_replicas=replicas)
  with pytest.raises(ValueError, match='have the name class_1/kernel: rename the scope'):
    estimator.train(input_fn, steps=1)
  estimator.train(make_input_fn(), steps=1)
  if checkpoint_format == 'saver':
    with pytest.raises(ValueError, match='have the name class_1/kernel: rename the scope'):
      estimator.evaluate(input_fn, steps=1)
  else:  # Object-based checkpoints do not depend on names.
    losses = [estimator.evaluate(function, steps=1)['loss']
              for function in (input_fn, make_input_fn())]
    assert losses[0] == losses[1]


def test_feature_columns_and_an_input_fn_that_returns_tensors(config):
  columns = [tf.feature_column.indicator_column(
      tf.feature_column.categorical_column_with_identity(name, 4)) for name in ('a', 'b')]
  inputs = {name: layers.Input((1,), dtype=tf.int64, name=name) for name in ('a', 'b')}
  hidden = layers.DenseFeatures(columns)(inputs)
  model = keras.Model(inputs, layers.Dense(1)(layers.Dense(4, activation='relu')(hidden)))
  model.compile('rmsprop', 'mse')
  data = {'a': np.int64([1, 1, 3, 0]), 'b': np.int64([0, 3, 3, 2])}
  estimator = estimator_train.convert(model, config=config)
  estimator.train(tf.estimator.inputs.numpy_input_fn(
      data, np.float32([0, 1, 0, 1]), num_epochs=2, shuffle=False))
  assert estimator.get_variable_value('global_step') == 1


@pytest.mark.parametrize('layer', [layers.LSTM, layers.GRU])
def test_recurrent_layers(config, layer):
  model = keras.Sequential([layers.Reshape((10, 1), input_shape=(10,)),
                            layers.Bidirectional(layer(3, return_sequences=True)), layer(3),
                            layers.Dense(2, activation='softmax')])
  model.compile('sgd', 'categorical_crossentropy')
  estimator = estimator_train.convert(model, config=config, checkpoint_format='checkpoint')
  assert_allclose(predicted(estimator, make_input_fn(labels=None, epochs=1)),
                  model.predict(FEATURES), atol=1e-6)
  estimator.train(make_input_fn(), steps=1)


def test_premade_models(config, tmp_path):
  target = FEATURES[:, :1] * .3 + FEATURES[:, 1:2] * .2
  linear = keras.experimental.LinearModel(1)
  linear.compile(keras.optimizers.SGD(.1), 'mse', ['mse'])
  linear.fit(FEATURES, target, epochs=2, verbose=0)
  deep = keras.Sequential([layers.Dense(1, kernel_initializer='zeros')])
  wide_and_deep = keras.experimental.WideDeepModel(keras.experimental.LinearModel(1), deep)
  wide_and_deep.compile([keras.optimizers.SGD(.1), keras.optimizers.Adam(.1)], 'mse', ['mse'])
  for number, model in enumerate((linear, wide_and_deep)):
    estimator = estimator_train.convert(model, model_dir=str(tmp_path / str(number)))
    estimator.train(make_input_fn(labels=target), steps=100)
    assert estimator.evaluate(make_input_fn(labels=target, epochs=1))['loss'] < .01


def serving_input():
  examples = tf.placeholder(tf.string, [None])
  features = tf.parse_example(examples, {'vector': tf.FixedLenFeature([10], tf.float32)})
  return tf.estimator.export.ServingInputReceiver(features, examples)


def serialized(vector):
  return tf.train.Example(features=tf.train.Features(feature={
      'vector': tf.train.Feature(float_list=tf.train.FloatList(value=vector))})).SerializeToString()


@pytest.mark.parametrize('checkpoint_format', ['saver', 'checkpoint'])
def test_export(config, tmp_path, checkpoint_format):
  model = compiled(functional)
  model.fit(FEATURES, ONE_HOT, verbose=0)
  estimator = estimator_train.convert(
      model, config=config, checkpoint_format=checkpoint_format,
      export_outputs={'class': tf.estimator.export.ClassificationOutput})

  def exported():
    path = estimator.export_saved_model(str(tmp_path / 'exports'), serving_input)
    with tf.Graph().as_default(), tf.Session() as session:
      signatures = tf.saved_model.load(session, ['serve'], path.decode()).signature_def
      assert signatures['class'].method_name == 'tensorflow/serving/classify'
      output = signatures['serving_default'].outputs['class'].name
      (feature,) = signatures['serving_default'].inputs.values()
      return session.run(output, {feature.name: [serialized(vector) for vector in FEATURES]})

  assert_allclose(exported(), model.predict(FEATURES), atol=1e-6)  # Without a checkpoint.
  estimator.train(make_input_fn(), steps=3)
  assert_allclose(exported(), predicted(estimator, make_input_fn(labels=None, epochs=1)), atol=1e-6)
  assert np.abs(exported() - model.predict(FEATURES)).max() > 1e-4


def test_an_object_based_checkpoint_is_loaded_by_keras(config):
  model = compiled(functional)
  estimator = estimator_train.convert(model, config=config.replace(keep_checkpoint_max=2),
                                      checkpoint_format='checkpoint')
  for _ in range(4):
    estimator.train(make_input_fn(), steps=1)
  assert len(tf.train.get_checkpoint_state(config.model_dir).all_model_checkpoint_paths) <= 2
  expected = predicted(estimator, make_input_fn(labels=None, epochs=1))
  model.load_weights(estimator.latest_checkpoint())
  assert_allclose(model.predict(FEATURES), expected, atol=1e-6)


@pytest.mark.parametrize('make', [
    Subclass, ConfigurableSubclass, lambda: keras.experimental.LinearModel(2),
    lambda: keras.Sequential([layers.Dense(3), layers.BatchNormalization(), layers.Dense(2)])])
@pytest.mark.parametrize('replicas', [1, 2])
def test_weights_of_a_model_without_known_inputs(config, make, replicas):
  model = compiled(make, 'sgd', 'mse')
  model.fit(FEATURES, ONE_HOT, verbose=0)
  expected, weights = model.predict(FEATURES), model.get_weights()
  estimator = estimator_train.convert(model, config=config, num_cpu_replicas=replicas)
  assert_allclose(predicted(estimator, make_input_fn(labels=None, epochs=1)), expected, atol=1e-6)
  estimator.train(make_input_fn(), steps=1)
  trained = predicted(estimator, make_input_fn(labels=None, epochs=1))
  assert 0 < np.abs(trained - expected).max() < .3
  assert len(weights) == len(model.get_weights())


class Block(layers.Layer):
  """Two layers inside a layer."""

  def __init__(self, **options):
    super().__init__(**options)
    self.first, self.second = layers.Dense(10), layers.Dense(10)

  def call(self, inputs):
    return self.second(self.first(inputs))


class SubclassWithBlock(ConfigurableSubclass):
  """A model that has layers inside a layer."""

  def __init__(self):
    super().__init__()
    self.block = Block()

  def call(self, inputs):
    return super().call(self.block(inputs))


@pytest.mark.parametrize('make, find_layer', [
    (Subclass, lambda model: model.hidden),
    (ConfigurableSubclass, lambda model: model.hidden),
    (SubclassWithBlock, lambda model: model.block.first),
    (lambda: keras.Sequential([Block(input_shape=(10,)), layers.Dense(2)]),
     lambda model: model.layers[0].first),
    (lambda: keras.Sequential([keras.Sequential([Block(input_shape=(10,))]), layers.Dense(2)]),
     lambda model: model.layers[0])])
@pytest.mark.parametrize('replicas', [1, 2])
def test_layers_that_were_frozen_after_their_construction(config, make, find_layer, replicas):
  model = compiled(make, 'sgd', 'mse')
  model.fit(FEATURES, ONE_HOT, verbose=0)
  find_layer(model).trainable = False
  model.compile('sgd', 'mse')
  expected = model.predict(FEATURES)
  frozen, trained = ([weight.op.name for weight in weights]
                     for weights in (model.non_trainable_weights, model.trainable_weights))
  values = dict(zip((weight.op.name for weight in model.weights), model.get_weights()))
  for _ in range(2):  # The second time from a checkpoint.
    estimator = estimator_train.convert(model, config=config, num_cpu_replicas=replicas)
    if estimator.latest_checkpoint() is None:
      assert_allclose(predicted(estimator, make_input_fn(labels=None, epochs=1)), expected,
                      atol=1e-6)
    estimator.train(make_input_fn(), steps=1)
    for name in frozen:
      np.testing.assert_array_equal(estimator.get_variable_value(name), values[name])
    for name in trained:
      assert not np.array_equal(estimator.get_variable_value(name), values[name])


class Incomplete(ConfigurableSubclass):
  """A model whose configuration lacks an argument."""

  def __init__(self, units=4, has_third=False):
    super().__init__()
    self.hidden = layers.Dense(units)
    if has_third:
      self.third = layers.Dense(10)

  def call(self, inputs):
    return super().call(self.third(inputs) if hasattr(self, 'third') else inputs)


@pytest.mark.parametrize('options, is_frozen', [
    ({'units': 5}, False), ({'has_third': True}, False), ({'has_third': True}, True)])
def test_a_model_whose_configuration_lacks_an_argument(config, options, is_frozen):
  model = compiled(functools.partial(Incomplete, **options))
  model.fit(FEATURES, ONE_HOT, verbose=0)
  model.hidden.trainable = not is_frozen
  estimator = estimator_train.convert(model, config=config)
  assert_allclose(predicted(estimator, make_input_fn(labels=None, epochs=1)),
                  model.predict(FEATURES), atol=1e-6)
  estimator.train(make_input_fn(), steps=1)
  (kernel,) = [name for name in estimator.get_variable_names() if name.endswith('/kernel')
               and estimator.get_variable_value(name).shape == (10, options.get('units', 4))]
  assert np.array_equal(estimator.get_variable_value(kernel),
                        model.hidden.get_weights()[0]) == is_frozen


def test_a_subclassed_model_keeps_its_state(config):
  model = compiled(Subclass, tf.train.RMSPropOptimizer(1e-3))
  model.fit(FEATURES, ONE_HOT, verbose=0)
  optimizer, weights = model.optimizer, model.get_weights()
  estimator_train.convert(model, config=config).train(make_input_fn(), steps=2)
  assert model.optimizer is optimizer
  for weight, value in zip(model.get_weights(), weights):
    np.testing.assert_array_equal(weight, value)


@pytest.mark.parametrize('options, message', [
    ({}, 'Either keras_model or keras_model_path'),
    ({'keras_model': 'model', 'keras_model_path': '/tmp/x'}, "not both.*give model_dir='/tmp/x'"),
    ({'keras_model': sequential}, 'has not been compiled'),
    ({'keras_model': compiled, 'checkpoint_format': 'npz'}, 'checkpoint_format must be one of'),
    ({'keras_model': compiled, 'config': {'model_dir': 'x'}}, 'instance of `RunConfig`'),
    ({'keras_model': compiled, 'export_outputs': {'other': None}}, 'choose from dense'),
    ({'keras_model': compiled, 'distribution_strategy': 'parameter_server'}, 'single process'),
    ({'keras_model': compiled, 'distribution_strategy': 'other'}, 'choose from off'),
    ({'keras_model': lambda: compiled(Subclass), 'checkpoint_format': 'checkpoint'},
     'object-based'),
    ({'keras_model': compiled, 'num_gpus': 99}, 'num_gpus exceeds the number of GPUs'),
])
def test_invalid_arguments(options, message):
  options = {name: value() if callable(value) else value for name, value in options.items()}
  with pytest.raises(ValueError, match=message):
    estimator_train.convert(**options)


def test_the_folder_as_second_argument_gets_a_helpful_error(tmp_path):
  with pytest.raises(ValueError, match='model_dir='):
    estimator_train.convert(compiled(), str(tmp_path))


def test_a_config_without_a_folder(monkeypatch, tmp_path):
  options = tf.estimator.RunConfig().session_config
  for config in (None, tf.estimator.RunConfig()):
    estimator = estimator_train.convert(compiled(), model_dir=str(tmp_path / 'a'), config=config)
    assert estimator.model_dir == estimator.config.model_dir == str(tmp_path / 'a')
    assert estimator.config.session_config == options or options is None
    assert estimator.config.train_distribute is None
  monkeypatch.setattr(tempfile, 'mkdtemp', lambda: str(tmp_path / 'temporary'))
  assert estimator_train.convert(compiled()).model_dir == str(tmp_path / 'temporary')
  with pytest.raises(ValueError, match='`model_dir` are set both'):
    estimator_train.convert(compiled(), model_dir=str(tmp_path / 'a'),
                            config=tf.estimator.RunConfig(model_dir=str(tmp_path / 'b')))


def test_session_options_of_the_config(tmp_path):
  options = tf.ConfigProto(gpu_options=tf.GPUOptions(per_process_gpu_memory_fraction=.3),
                           inter_op_parallelism_threads=3)
  config = tf.estimator.RunConfig(model_dir=str(tmp_path), session_config=options)
  estimator = estimator_train.convert(compiled(), config=config, num_cpu_replicas=2)
  assert estimator.config.session_config.inter_op_parallelism_threads == 3
  assert estimator.config.session_config.device_count['CPU'] == 2
  session = keras.backend.get_session()
  assert session._config.gpu_options.per_process_gpu_memory_fraction == pytest.approx(.3)


def test_intervals_of_the_config(tmp_path):
  config = tf.estimator.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=4,
                                  keep_checkpoint_max=2, save_summary_steps=2)
  estimator = estimator_train.convert(compiled(), config=config)
  saved = []

  class Listener(tf.train.CheckpointSaverListener):
    """Records the steps of the checkpoints."""

    def after_save(self, session, global_step_value):
      saved.append(global_step_value)

  estimator.train(make_input_fn(), steps=10, saving_listeners=[Listener()])
  assert saved == [0, 4, 8, 10]
  assert len(tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths) == 2


def test_a_cluster_with_parameter_servers_in_tf_config(tmp_path, monkeypatch):
  monkeypatch.setenv('TF_CONFIG', json.dumps({
      'cluster': {'ps': ['localhost:1234'], 'worker': ['localhost:1235'],
                  'chief': ['localhost:1236']}, 'task': {'type': 'worker', 'index': 0}}))
  estimator = estimator_train.convert(compiled(), model_dir=str(tmp_path))
  assert estimator.config.num_ps_replicas == 1 and not estimator.config.is_chief


def test_stop_if_no_decrease_hook_stops(tmp_path):
  config = tf.estimator.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=2)
  # A learning rate at which the loss increases.
  estimator = estimator_train.convert(
      compiled(optimizer=keras.optimizers.SGD(1e3)), config=config)
  hook = tf.estimator.experimental.stop_if_no_decrease_hook(
      estimator, 'loss', 4, run_every_secs=None, run_every_steps=2)
  tf.estimator.train_and_evaluate(
      estimator, tf.estimator.TrainSpec(make_input_fn(), 100, [hook]),
      tf.estimator.EvalSpec(make_input_fn(epochs=1), steps=2, throttle_secs=0))
  assert estimator.get_variable_value('global_step') < 100


def test_exporters_of_train_and_evaluate(tmp_path):
  config = tf.estimator.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=2)
  estimator = estimator_train.convert(compiled(functional), config=config)
  exporter = tf.estimator.LatestExporter('latest', serving_input, exports_to_keep=9)
  tf.estimator.train_and_evaluate(
      estimator, tf.estimator.TrainSpec(make_input_fn(), 6),
      tf.estimator.EvalSpec(make_input_fn(epochs=1), steps=2, throttle_secs=0,
                            exporters=[exporter]))
  assert len(os.listdir(str(tmp_path / 'export' / 'latest'))) == 3


def mirrored():
  return tf.distribute.MirroredStrategy(['/cpu:0', '/cpu:1'])


def on_two_cpus(folder, **options):
  return tf.estimator.RunConfig(
      model_dir=str(folder), session_config=tf.ConfigProto(device_count={'CPU': 2}), **options)


@pytest.mark.parametrize('optimizer', [
    lambda: keras.optimizers.SGD(.1), lambda: tf.train.GradientDescentOptimizer(.1),
    lambda: keras.optimizers.Adam(.001), lambda: tf.train.AdamOptimizer(.001)])
@pytest.mark.parametrize('weighted', [False, True])
def test_replicas_train_like_one(tmp_path, optimizer, weighted):
  features, labels = two_of_each(dict)
  if weighted:
    random = np.random.RandomState(2)
    features = {'features': features, 'sample_weights': tuple(
        random.uniform(size=40).astype(np.float32) for _ in labels)}
  model = compiled(two_inputs_and_outputs, optimizer(), {
      'kind': 'categorical_crossentropy', 'size': 'mse'}, loss_weights={'kind': .7, 'size': .3})
  weights = []
  for replicas, config in ((1, tf.estimator.RunConfig(model_dir=str(tmp_path / '1'))),
                           (2, on_two_cpus(tmp_path / '2', train_distribute=mirrored()))):
    estimator = estimator_train.convert(model, config=config)
    estimator.train(make_input_fn(features, labels, batch_size=20 // replicas), steps=3)
    weights.append({name: estimator.get_variable_value(name)
                    for name in ('dense/kernel', 'kind/kernel', 'size/bias')})
  for name, value in weights[0].items():
    assert_allclose(weights[1][name], value, atol=1e-6)
    assert not np.array_equal(value, model.get_layer(name.split('/')[0]).get_weights()[
        name.endswith('bias')])


def test_a_strategy_of_a_canned_estimator_keeps_its_scaling(tmp_path):
  strategy = mirrored()
  estimator = estimator_train.convert(
      compiled(), config=on_two_cpus(tmp_path, train_distribute=strategy))
  estimator.train(make_input_fn(), steps=1)
  with strategy._scale_loss_for_estimator_enabled():
    assert strategy._scale_loss_for_estimator
  assert not strategy._scale_loss_for_estimator


def test_evaluation_with_eval_distribute_counts_every_example(tmp_path, caplog):
  estimator = estimator_train.convert(compiled(), config=on_two_cpus(
      tmp_path, train_distribute=mirrored(), eval_distribute=mirrored()))
  estimator.train(make_input_fn(), steps=1)
  assert estimator.evaluate(make_input_fn(epochs=1, batch_size=64))['examples'] == 200
  assert 'evaluating on one device' in caplog.text


def test_devices_of_the_config_and_of_keywords(tmp_path):
  with pytest.raises(ValueError, match='config has train_distribute'):
    estimator_train.convert(compiled(), config=on_two_cpus(tmp_path, train_distribute=mirrored()),
                            num_cpu_replicas=2)


@pytest.mark.parametrize('make_strategy', [
    lambda: tf.distribute.OneDeviceStrategy('/cpu:0'),
    lambda: tf.distribute.experimental.CentralStorageStrategy(['/cpu:0', '/cpu:1'], '/cpu:0')])
def test_other_strategies_of_the_config(tmp_path, make_strategy):
  model = compiled(functools.partial(keras.Sequential, [
      layers.Dense(2, activation='softmax', input_shape=(10,), name='class')]), 'sgd')
  weights = []
  for number, strategy in enumerate((None, make_strategy())):
    estimator = estimator_train.convert(model, config=on_two_cpus(
        tmp_path / str(number), train_distribute=strategy))
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync
    estimator.train(make_input_fn(batch_size=20 // replicas), steps=3)
    weights.append(estimator.get_variable_value('class/kernel'))
  assert_allclose(weights[1], weights[0], atol=1e-6)
  assert not np.allclose(weights[0], model.get_weights()[0])


@pytest.mark.parametrize('optimizer', ['nadam', 'adam', 'rmsprop'])
def test_training_in_parts_is_like_training_at_once(tmp_path, optimizer):
  model = compiled(functools.partial(keras.Sequential, [
      layers.Dense(2, activation='softmax', input_shape=(10,), name='class')]), optimizer)
  kernels = []
  for name, parts in (('parts', (4, 4)), ('once', (8,))):
    estimator = estimator_train.convert(model, model_dir=str(tmp_path / name))
    for steps in parts:  # The same batch in every step.
      estimator.train(lambda: tf.data.Dataset.from_tensors((FEATURES, ONE_HOT)).repeat(),
                      steps=steps)
    kernels.append(estimator.get_variable_value('class/kernel'))
  assert_allclose(kernels[0], kernels[1], atol=1e-6)


class Dense(layers.Dense):
  """A layer of a user with the name of one of Keras's."""

  def call(self, inputs):
    return 100 * super().call(inputs)


class WithFunctions(layers.Layer):
  """A layer with functions that are no part of its configuration."""

  def __init__(self, **options):
    super().__init__(**options)
    self.first, self.second = (lambda value: value + 1), (lambda value: value * 2)

  def call(self, inputs):
    return self.second(self.first(inputs))


def relu(values):
  return keras.backend.relu(values, alpha=.5)


def test_names_of_users_that_keras_has_too(tmp_path):
  model = compiled(functools.partial(keras.Sequential, [
      keras.Sequential([layers.Dense(3, input_shape=(10,))]), Dense(3), WithFunctions(),
      layers.Dense(2, activation=relu)]), 'sgd', 'mse')
  estimator = estimator_train.convert(model, model_dir=str(tmp_path / 'a'))
  assert_allclose(predicted(estimator, make_input_fn(labels=None, epochs=1)),
                  model.predict(FEATURES), rtol=1e-5, atol=1e-4)
  both = compiled(functools.partial(keras.Sequential, [
      layers.Dense(3, activation='relu', input_shape=(10,)), layers.Dense(2, activation=relu)]),
                  'sgd', 'mse')
  estimator = estimator_train.convert(both, model_dir=str(tmp_path / 'b'))
  assert_allclose(predicted(estimator, make_input_fn(labels=None, epochs=1)),
                  both.predict(FEATURES), rtol=1e-5, atol=1e-4)


def my_sparse_categorical_crossentropy(true, outputs):
  return keras.losses.sparse_categorical_crossentropy(true, outputs)


def test_a_loss_of_the_user_gets_no_metrics_whose_labels_are_unknown(config):
  model = compiled(loss=my_sparse_categorical_crossentropy, metrics=['mae'])
  estimator = estimator_train.convert(model, config=config)
  result = estimator.evaluate(make_input_fn(labels=CLASSES[:, None].astype(np.float32), epochs=1))
  assert set(result) == {'average_loss', 'examples', 'global_step', *model.metrics_names}


def test_outputs_whose_names_end_in_numbers(tmp_path):
  inputs = layers.Input((10,))
  model = keras.Model(inputs, [layers.Dense(2, name='out_1')(inputs),
                               layers.Dense(2, name='out_2')(inputs)])
  model.compile('sgd', 'mse')
  estimator = estimator_train.convert(
      model, model_dir=str(tmp_path), num_cpu_replicas=2,
      export_outputs={'out_2': tf.estimator.export.RegressionOutput})
  estimator.train(make_input_fn(labels=(ONE_HOT, ONE_HOT)), steps=1)
  assert set(next(estimator.predict(make_input_fn(labels=None)))) == {'out_1', 'out_2'}

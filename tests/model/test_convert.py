"""`convert` in place of model_to_estimator: what scripts of users pass to it, and its results."""

import os
import shutil
import tempfile

import like_keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from like_keras import ONE_HOT, X, compare, convert, in_batches, make_config, predict
from numpy.testing import assert_allclose, assert_array_equal

import estimator_train

keras = tf.keras
layers = tf.keras.layers
pytestmark = pytest.mark.usefixtures('own_graph')

DATA = in_batches((X, ONE_HOT), 8)


def sequential():
  return keras.Sequential([layers.Dense(4, activation='tanh', input_shape=(6,)),
                           layers.Dense(2, activation='softmax')])


def functional(**options):
  inputs = layers.Input((6,), name='vector')
  hidden = layers.Dense(4, activation='tanh', **options)(inputs)
  return keras.Model(inputs, layers.Dense(2, activation='softmax', name='class')(hidden))


class VariableHook(tf.train.SessionRunHook):
  """A hook that creates a variable when the graph is otherwise complete."""

  def begin(self):
    tf.get_variable('of_a_hook', [1])


def compiled(make=sequential, optimizer='rmsprop', loss='categorical_crossentropy', **options):
  model = make()
  model.compile(optimizer, loss, **options)
  return model


def outputs_of(estimator):
  return predict(estimator, in_batches((X, ONE_HOT)))[0]


@pytest.mark.parametrize('make, optimizer, options', [
    # Epsilon is large, because small values enlarge rounding errors.
    (functional, lambda: keras.optimizers.Nadam(.05, epsilon=.1), {'replicas': (1, 1)}),
    (sequential, lambda: keras.optimizers.Adam(.05, epsilon=.1),
     {'checkpoint_format': 'checkpoint', 'replicas': (1, 1)}),
    (lambda: like_keras.Subclass(layers.Dense(4, 'tanh'), layers.Dense(2)),
     lambda: keras.optimizers.RMSprop(.05, epsilon=.1, momentum=.5),
     {'hooks': [VariableHook()], 'replicas': (2, 1)}),
    (lambda: like_keras.Subclass(layers.Dense(4, 'tanh'), layers.Dense(2)),
     lambda: keras.optimizers.SGD(.05, momentum=.5), {'checkpoint_format': 'checkpoint'})])
def test_resumes_any_kind_of_model(tmp_path, make, optimizer, options):
  """With another learning rate of the model, too."""
  model = compiled(make, optimizer(), 'mse')
  model.predict_on_batch(X)
  compare(model, tmp_path, (X, ONE_HOT), **options)


def test_resumes_object_based_checkpoints_of_replicas(tmp_path):
  for step, replicas in enumerate((2, 0, 2), 1):
    model = compiled(lambda: keras.Sequential([
        layers.BatchNormalization(input_shape=(6,)), layers.Dense(2, 'softmax')]))
    estimator = convert(model, tmp_path, checkpoint_format='checkpoint',
                        num_cpu_replicas=replicas)
    estimator.train(DATA, steps=1)
    assert estimator.evaluate(DATA)['global_step'] == step


def with_function():
  return keras.Sequential([layers.Dense(3, kernel_initializer='ones', input_shape=(6,)),
                           layers.Lambda(tf.function(lambda values: tf.sin(values) * values)),
                           layers.Dense(2, 'softmax', kernel_initializer='ones')])


def test_a_session_has_run_a_function(tmp_path):
  model = compiled(with_function)
  expected = model.predict(X)
  convert(model, tmp_path).train(DATA)
  model.get_weights()  # Adds new operations to the session.
  assert_array_equal(model.predict(X), expected)


@pytest.mark.parametrize('is_used', [False, True])
def test_the_model_remains_usable(tmp_path, is_used):
  """Also a model with a tf.function, and with other sample weights than those of the Estimator."""
  weights = np.linspace(0, 2, 24, dtype=np.float32)
  input_fn = in_batches(({'features': X, 'sample_weights': weights}, ONE_HOT))
  losses = []
  for is_converted in (False, True):
    with tf.Graph().as_default():
      keras.backend.set_session(None)
      model = compiled(with_function)
      if is_used:
        model.train_on_batch(X, ONE_HOT)
      if is_converted:
        estimator = convert(model, tmp_path)
        estimator.train(input_fn, steps=1)
        estimator.evaluate(input_fn)
      losses.append([model.train_on_batch(X, ONE_HOT, sample_weight)
                     for sample_weight in (weights, None, weights)])
  assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def mirrored():
  return tf.distribute.MirroredStrategy(['/cpu:0', '/cpu:1'])


@pytest.mark.parametrize('make_strategy', [
    mirrored,
    lambda: tf.distribute.experimental.CentralStorageStrategy(['/cpu:0', '/cpu:1'], '/cpu:0')])
def test_strategies_of_the_config(tmp_path, caplog, make_strategy):
  strategy = make_strategy()
  session_config = tf.ConfigProto(device_count={'CPU': 2})
  session_config.MergeFrom(like_keras.SESSION_CONFIG)
  config = make_config(tmp_path, session_config=session_config, train_distribute=strategy,
                       eval_distribute=mirrored())
  compare(compiled(optimizer='sgd'), tmp_path, (X, ONE_HOT), lambda size: in_batches(
      (X, ONE_HOT), size if size > 8 else 8 // strategy.num_replicas_in_sync), config=config)
  assert 'evaluating on one device' in caplog.text
  with strategy._scale_loss_for_estimator_enabled():  # As canned Estimators have it.
    assert strategy._scale_loss_for_estimator
  with pytest.raises(ValueError, match='config has train_distribute'):
    convert(compiled(), tmp_path, config=config, num_cpu_replicas=2)


def test_initial_weights_are_those_of_the_last_model(tmp_path):
  own_weights = str(tmp_path / 'keras' / 'own.ckpt')  # A file of the user in the same folder.
  for bias in (3., 5.):
    model = compiled(lambda bias=bias: functional(
        bias_initializer=keras.initializers.constant(bias)))
    # Keras has no session yet, and so the weights have no values.
    estimator = estimator_train.convert(model, model_dir=str(tmp_path))
    expected = model.predict(X)
    assert_allclose(outputs_of(estimator), expected, atol=1e-6)
    model.save_weights(own_weights)
  convert(model, tmp_path)
  model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
  model.load_weights(own_weights)
  assert_allclose(model.predict(X), expected, atol=1e-6)


def test_models_with_layers_of_the_same_names(tmp_path):
  estimators, expected = [], []
  for number in range(2):  # As a notebook's cell that is executed again.
    inputs = layers.Input((6,))
    outputs = layers.Dense(2, activation='softmax', name='a')(
        layers.BatchNormalization(name='a_1')(layers.Dense(3, name='b')(inputs)))
    model = compiled(lambda outputs=outputs, inputs=inputs: keras.Model(inputs, outputs), 'sgd')
    model.train_on_batch(X, ONE_HOT)
    estimators.append(convert(model, tmp_path / str(number)))
    expected.append(model.predict(X))
  for estimator, values in zip(estimators, expected):
    assert_allclose(outputs_of(estimator), values, atol=1e-6)
    estimator.train(DATA, steps=1)
    assert estimator.evaluate(DATA)['examples'] == 24


def test_a_checkpoint_of_another_model(tmp_path):
  convert(compiled(functional), tmp_path).train(DATA, steps=1)
  wider = compiled(lambda: keras.Sequential([
      layers.Dense(8, input_shape=(6,), name='dense'), layers.Dense(2, name='class')]))
  with pytest.raises(ValueError, match=r'another model: .*dense/kernel of shape \[6, 4\], not '):
    convert(wider, tmp_path)


def test_a_model_from_a_file(tmp_path):
  model = compiled(functional)
  path = tmp_path / 'a model.h5'
  model.save(str(path))
  for number, given in enumerate((path, 'file://{}'.format(path))):
    estimator = convert(None, tmp_path / str(number), keras_model_path=given)
    assert_allclose(outputs_of(estimator), model.predict(X), atol=1e-6)


@pytest.mark.parametrize('checkpoint_format', ['saver', 'checkpoint'])
def test_a_folder_that_was_copied_or_moved(tmp_path, checkpoint_format):
  """Its list has absolute paths, as older versions write them."""
  model = compiled()

  def convert_in(name):
    return convert(model, tmp_path / name, checkpoint_format=checkpoint_format,
                   config=make_config(tmp_path / name, keep_checkpoint_max=2))

  convert_in('original').train(DATA, steps=2)
  state_file = tmp_path / 'original' / 'checkpoint'
  assert str(tmp_path) not in state_file.read_text()  # Nor do new lists have such paths.
  state_file.write_text(state_file.read_text().replace(
      '"model.ckpt', '"{}/model.ckpt'.format(tmp_path / 'original')))
  shutil.copytree(str(tmp_path / 'original'), str(tmp_path / 'copy'))
  before = set(os.listdir(str(tmp_path / 'original')))
  copy = convert_in('copy')
  copy.train(DATA, steps=2)
  copy.train(DATA, steps=2)
  assert copy.latest_checkpoint() == str(tmp_path / 'copy' / 'model.ckpt-6')
  assert set(os.listdir(str(tmp_path / 'original'))) == before
  os.rename(str(tmp_path / 'original'), str(tmp_path / 'moved'))
  assert convert_in('moved').latest_checkpoint() == str(tmp_path / 'moved' / 'model.ckpt-2')
  for path in (tmp_path / 'copy').glob('model.ckpt-6*'):
    path.unlink()
  (tmp_path / 'copy' / 'checkpoint').write_text('model_checkpoint_path: "/elsewhere/model.ckpt-6"')
  with pytest.raises(ValueError, match="latest checkpoint in TensorFlow's list is missing: "):
    convert_in('copy')


def accuracy(true, outputs):
  return keras.metrics.top_k_categorical_accuracy(true, outputs, k=2)


def my_sparse_categorical_crossentropy(true, outputs):
  return keras.losses.sparse_categorical_crossentropy(true, outputs)


def test_metrics_beside_those_of_the_user(tmp_path):
  model = compiled(metrics=[accuracy])
  result = convert(model, tmp_path / 'a').evaluate(in_batches((X, ONE_HOT), 7))
  counts = np.zeros((2, 2), int)
  np.add.at(counts, (like_keras.CLASSES, model.predict(X).argmax(-1)), 1)
  assert_array_equal(result['confusion_matrix'], counts)
  assert result['accuracy'] == 1 and counts.trace() < 24
  assert {'calibration_error', 'macro_f1'} <= set(result) and 'top_5_accuracy' not in result
  # A loss whose labels are unknown.
  model = compiled(loss=my_sparse_categorical_crossentropy, metrics=['mae'])
  result = convert(model, tmp_path / 'b').evaluate(
      in_batches((X, like_keras.CLASSES[:, None].astype(np.float32))))
  assert set(result) == {'average_loss', 'examples', 'global_step', *model.metrics_names}


@pytest.mark.parametrize('batch_size', [1, 7, 24])
def test_metrics_of_classes(tmp_path, batch_size):
  """They count each example once, in batches of any size, whatever the sample weights are."""
  logits = np.random.RandomState(0).normal(0, 3, [24, 10]).astype(np.float32)
  logits[:3] = 0  # All classes are tied: the first one is predicted, and five are the top ones.
  classes = np.r_[0, 4, 5, np.arange(21) % 7]  # No example is of the last three classes.
  model = keras.Sequential([layers.Lambda(lambda outputs: outputs, input_shape=(10,)),
                            layers.Dense(10, kernel_initializer='identity')])
  model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  result = convert(model, tmp_path).evaluate(in_batches((
      {'features': logits, 'sample_weights': np.linspace(0, 9, 24, dtype=np.float32)},
      classes[:, None]), batch_size))
  predicted = logits.argmax(-1)
  probabilities = np.exp(logits.astype(float))
  confidences = (probabilities / probabilities.sum(-1, keepdims=True)).max(-1)
  bins = np.ceil(15 * confidences)
  assert len(set(bins)) > 6
  assert result['calibration_error'] == pytest.approx(sum(
      in_bin.mean() * abs((predicted == classes)[in_bin].mean() - confidences[in_bin].mean())
      for in_bin in (bins == number for number in set(bins))), rel=1e-5)
  ranks = np.argsort(-logits, -1, kind='stable')
  assert result['top_5_accuracy'] == (ranks[:, :5] == classes[:, None]).any(-1).mean()
  is_class, is_predicted = (indices == np.union1d(classes, predicted)[:, None]
                            for indices in (classes, predicted))
  assert len(is_class) > 7
  correct = (is_class & is_predicted).sum(-1)
  counts = is_predicted.sum(-1), is_class.sum(-1), (is_predicted.sum(-1) + is_class.sum(-1)) / 2
  assert [result['macro_' + name] for name in ('precision', 'recall', 'f1')] == pytest.approx(
      [np.mean(correct / np.maximum(count, 1)) for count in counts])


@pytest.mark.parametrize('make_scope, checkpoint_format, replicas', [
    (tf.name_scope, 'saver', 2), (tf.variable_scope, 'checkpoint', 0)])
def test_a_scope_of_the_input_fn_has_the_name_of_a_layer(tmp_path, make_scope, checkpoint_format,
                                                         replicas):
  def input_fn():
    with make_scope('class'):
      return DATA()

  estimator = convert(compiled(functional), tmp_path, checkpoint_format=checkpoint_format,
                      num_cpu_replicas=replicas)
  estimator.train(input_fn, steps=1)
  estimator.train(DATA, steps=1)
  assert estimator.evaluate(input_fn)['loss'] == estimator.evaluate(DATA)['loss']


def test_an_operation_of_the_input_fn_has_the_name_of_a_weight(tmp_path):
  def input_fn():
    with tf.name_scope('class'):
      tf.constant(1, name='kernel')
    return DATA()

  with pytest.raises(ValueError, match='have the name class/kernel_1: rename the scope'):
    convert(compiled(functional), tmp_path).train(input_fn, steps=1)


def test_a_wide_and_deep_model_with_two_optimizers(tmp_path):
  model = keras.experimental.WideDeepModel(
      keras.experimental.LinearModel(1), keras.Sequential([layers.Dense(1)]))
  model.compile([keras.optimizers.SGD(.1), keras.optimizers.Adam(.1)], 'mse')
  estimator = convert(model, tmp_path)
  target = X[:, :1] * .3 + X[:, 1:2] * .2
  estimator.train(in_batches((X, target), 8, epochs=None), steps=100)
  assert estimator.evaluate(in_batches((X, target)))['loss'] < .01


serving_input = tf.estimator.export.build_parsing_serving_input_receiver_fn(
    {'vector': tf.FixedLenFeature([6], tf.float32)})


def serialized(vector):
  return tf.train.Example(features=tf.train.Features(feature={
      'vector': tf.train.Feature(float_list=tf.train.FloatList(value=vector))})).SerializeToString()


def test_export_and_object_based_checkpoints(tmp_path):
  model = compiled(functional)
  estimator = convert(
      model, tmp_path / 'run', checkpoint_format='checkpoint',
      export_outputs={'class': tf.estimator.export.ClassificationOutput})

  def exported():
    path = estimator.export_saved_model(str(tmp_path / 'exports'), serving_input)
    with tf.Graph().as_default(), tf.Session() as session:
      signatures = tf.saved_model.load(session, ['serve'], path.decode()).signature_def
      assert signatures['class'].method_name == 'tensorflow/serving/classify'
      output = signatures['serving_default'].outputs['class'].name
      (feature,) = signatures['serving_default'].inputs.values()
      return session.run(output, {feature.name: [serialized(vector) for vector in X]})

  assert_allclose(exported(), model.predict(X), atol=1e-6)  # Without a checkpoint.
  estimator.train(DATA)
  trained = outputs_of(estimator)
  assert_allclose(exported(), trained, atol=1e-6)
  assert np.abs(trained - model.predict(X)).max() > 1e-4
  model.load_weights(estimator.latest_checkpoint())
  assert_allclose(model.predict(X), trained, atol=1e-6)


INVALID_ARGUMENTS = (
    ({}, 'Either keras_model or keras_model_path'),
    ({'keras_model': 'model', 'keras_model_path': '/tmp/x'}, "not both.*give model_dir='/tmp/x'"),
    ({'keras_model': sequential}, 'has not been compiled'),
    ({'keras_model': compiled, 'checkpoint_format': 'npz'}, 'checkpoint_format must be one of'),
    ({'keras_model': compiled, 'config': {'model_dir': 'x'}}, 'instance of `RunConfig`'),
    ({'keras_model': compiled, 'model_dir': 'x', 'config': tf.estimator.RunConfig('y')},
     '`model_dir` are set both'),
    ({'keras_model': compiled, 'export_outputs': {'other': None}}, 'choose from dense'),
    ({'keras_model': compiled, 'distribution_strategy': 'parameter_server'}, 'single process'),
    ({'keras_model': compiled, 'distribution_strategy': 'other'}, 'choose from off'),
    ({'keras_model': compiled, 'num_gpus': 99}, 'num_gpus exceeds the number of GPUs'))


def test_invalid_arguments():
  for arguments, message in INVALID_ARGUMENTS:
    options = {name: value() if callable(value) else value for name, value in arguments.items()}
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
      estimator_train.convert(**options)


def test_options_of_the_config(monkeypatch, tmp_path):
  monkeypatch.setattr(tempfile, 'mkdtemp', lambda: str(tmp_path / 'temporary'))
  assert estimator_train.convert(compiled()).model_dir == str(tmp_path / 'temporary')
  options = tf.ConfigProto(gpu_options=tf.GPUOptions(per_process_gpu_memory_fraction=.3),
                           inter_op_parallelism_threads=3)
  keras.backend.set_session(None)
  estimator = estimator_train.convert(
      compiled(), model_dir=str(tmp_path), num_cpu_replicas=2,
      config=tf.estimator.RunConfig(session_config=options))
  assert estimator.model_dir == estimator.config.model_dir == str(tmp_path)
  assert estimator.config.session_config.inter_op_parallelism_threads == 3
  # The replicas determine the number of devices, unless the session's configuration has one.
  assert estimator.config.session_config.device_count['CPU'] == 2
  options = make_config(tmp_path, session_config=tf.ConfigProto(device_count={'CPU': 3}))
  estimator = convert(compiled(), tmp_path, config=options, num_cpu_replicas=2)
  assert estimator.config.session_config.device_count['CPU'] == 3
  session = keras.backend.get_session()
  assert session._config.gpu_options.per_process_gpu_memory_fraction == pytest.approx(.3)


def test_hooks_exporters_and_intervals_of_train_and_evaluate(tmp_path):
  # A learning rate at which the loss increases.
  estimator = convert(
      compiled(functional, keras.optimizers.SGD(1e3)), tmp_path, checkpoint_format='checkpoint',
      config=make_config(tmp_path, save_checkpoints_steps=3, keep_checkpoint_max=2))
  hook = tf.estimator.experimental.stop_if_no_decrease_hook(
      estimator, 'loss', 2, run_every_secs=None, run_every_steps=2)
  exporter = tf.estimator.LatestExporter('latest', serving_input)
  tf.estimator.train_and_evaluate(
      estimator,
      tf.estimator.TrainSpec(in_batches((X, ONE_HOT), 8, epochs=None), 30, [hook]),
      tf.estimator.EvalSpec(DATA, steps=2, throttle_secs=0, exporters=[exporter]))
  evaluated = sorted(training_runs.scalars(tmp_path / 'eval', 'loss'))
  assert evaluated[:2] == [3, 6] and evaluated[-1] < 30
  assert len(tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths) == 2
  assert len(os.listdir(str(tmp_path / 'export' / 'latest'))) >= 2

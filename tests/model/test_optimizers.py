"""The optimizers of this package, beside the same formulas in NumPy."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from training_runs import assert_same

import estimator_train
from estimator_train.model.gradients import BackboneRateScaling, add_mixins
from estimator_train.model.optimizers import add_weight_decay, make_optimizer
from estimator_train.model.schedules import Schedule
from estimator_train.settings.flags import OPTIMIZERS
from estimator_train.tf_patches.estimator import copy_optimizer, read_hyperparameters

SCHEDULE = Schedule(.1, 0, [1, 2], [.05, .3])


def adam(gradients):
  """Yields the learning rate and Adam's corrected moments of each step."""
  mean, square = 0., 0.
  for step, gradient in enumerate(gradients, 1):
    mean = .9 * mean + .1 * gradient
    square = .999 * square + .001 * gradient ** 2
    yield SCHEDULE.rate_at(step - 1), mean / (1 - .9 ** step), square / (1 - .999 ** step)


def adamw(weights, gradients, decay):
  for step, (rate, mean, square) in enumerate(adam(gradients), 1):
    epsilon = 1e-7 / (1 - .999 ** step) ** .5  # Keras adds it before the correction.
    weights = weights - rate * (mean / (np.sqrt(square) + epsilon) + decay * weights)
  return weights


def lars(weights, gradients, decay):
  velocity = np.zeros_like(weights)
  for step, gradient in enumerate(gradients):
    norm, ratio = np.linalg.norm(weights), 1.
    if weights.ndim > 1 and norm:
      ratio = .001 * norm / (np.linalg.norm(gradient) + decay * norm)
    velocity = .9 * velocity + SCHEDULE.rate_at(step) * ratio * (gradient + decay * weights)
    weights = weights - velocity
  return weights


def lamb(weights, gradients, decay):
  for rate, mean, square in adam(gradients):
    update = mean / (np.sqrt(square) + 1e-6) + decay * weights
    norms = np.linalg.norm(weights), np.linalg.norm(update)
    is_scaled = weights.ndim > 1 and all(norms)
    weights = weights - rate * (norms[0] / norms[1] if is_scaled else 1) * update
  return weights


# Of the papers, in float64; biases are as in TensorFlow Addons, ALBERT and NVIDIA's BERT.
FORMULAS = {'adamw': adamw, 'lars': lars, 'lamb': lamb}


@pytest.mark.parametrize('name', FORMULAS)
@pytest.mark.parametrize('weights, gradients, rows', [
    ([[3., -4.], [0., 12.]], [[[1., 2.], [-3., .5]], np.ones([2, 2]), [[1e-8, 0.], [0., -1e-8]]],
     None),
    ([[0., 0.]], [[[1., -2.]], [[2., 1.]]], None),  # A kernel of 0 has no norm to scale with,
    ([[1., 1.]], [np.zeros([1, 2]), np.ones([1, 2])], None),  # nor has a gradient of 0.
    ([1., 2.], [[1., -1.], [3., 0.]], None),  # A bias does not decay, and is not adapted,
    ([0., 0.], [[1., -1.], [3., 0.], [2., 2.]], None),  # nor is one that starts at 0.
    # A sparse gradient has no row 1, and row 2 in two halves.
    ([[1., 2.], [3., 4.], [5., 6.]], [[[3., 4.], [0., 0.], [6., 8.]]] * 2, [2, 0, 2])])
def test_formulas(name, weights, gradients, rows):
  weights, gradients = np.array(weights), [np.array(gradient) for gradient in gradients]
  with tf.Graph().as_default(), tf.Session() as session:
    variable = tf.Variable(weights.astype(np.float32), use_resource=True)
    gradient = given = tf.placeholder(tf.float32, weights.shape)
    if rows:
      gradient = tf.IndexedSlices(tf.gather(given, rows) / [[2.], [1.], [2.]], tf.constant(rows),
                                  tf.constant(weights.shape))
    optimizer = make_optimizer(name, SCHEDULE)
    add_weight_decay(tf.keras.Sequential(), optimizer, .1)
    copy = type(optimizer).from_config(optimizer.get_config())
    step = copy.apply_gradients([(gradient, variable)])
    session.run(tf.global_variables_initializer())
    for value in gradients:
      session.run(step, {given: value})
    expected = FORMULAS[name](weights, gradients, .1 if weights.ndim > 1 else 0)
    np.testing.assert_allclose(session.run(variable), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('weight_name, decays', [
    ('gru/bias', False), ('gru/bias_1', False), ('gru/bias/replica_1', False),
    ('normalization/gamma', False), ('normalization/beta', False), ('p_re_lu/alpha', False),
    ('bias/kernel', True), ('dense/bias_kernel', True), ('lookup/embeddings/replica_1', True)])
@pytest.mark.parametrize('name', FORMULAS)
def test_biases_of_two_dimensions_do_not_decay(name, weight_name, decays):
  weights, gradients = np.array([[1., 2.]]), [np.array([[1., -1.]]), np.array([[3., 0.]])]
  with tf.Graph().as_default(), tf.Session() as session:
    variable = tf.Variable(weights.astype(np.float32), use_resource=True, name=weight_name)
    optimizer = make_optimizer(name, SCHEDULE)
    add_weight_decay(tf.keras.Sequential(), optimizer, .1)
    steps = [optimizer.apply_gradients([(tf.constant(gradient, tf.float32), variable)])
             for gradient in gradients]
    session.run(tf.global_variables_initializer())
    for step in steps:
      session.run(step)
    expected = (FORMULAS[name](weights, gradients, .1) if decays else
                FORMULAS[name](weights[0], [gradient[0] for gradient in gradients], 0)[np.newaxis])
    np.testing.assert_allclose(session.run(variable), expected, rtol=1e-5, atol=1e-6)


def black_images():
  """Images from which only the bias of the last layer can learn: 70, 10, 10 and 10 % per class."""
  split = estimator_train.ArraySplit(
      np.zeros([100, 4, 4, 1], np.uint8), np.repeat(range(4), [70, 10, 10, 10]))
  return estimator_train.DataSet(name='black', labels=tuple('abcd'), image_shape=(4, 4, 1),
                                 train=split, test=split)


def one_layer(image_shape, num_classes):
  return tf.keras.Sequential([tf.keras.layers.Flatten(input_shape=image_shape),
                              tf.keras.layers.Dense(num_classes, name='last')])


def test_lamb_trains_biases_like_adam(tmp_path):
  """The bias alone, in float64, without decay and without adaptation."""
  frequencies, bias, mean, square = np.array([.7, .1, .1, .1]), np.zeros(4), 0., 0.
  for step in range(1, 101):
    gradient = np.exp(bias) / np.exp(bias).sum() - frequencies
    mean, square = .9 * mean + .1 * gradient, .999 * square + .001 * gradient ** 2
    bias = bias - .02 * mean / (1 - .9 ** step) / (
        np.sqrt(square / (1 - .999 ** step)) + 1e-6)
  training_runs.train(
      tmp_path, model=one_layer, dataset=black_images, optimizer='lamb', learning_rate=.02,
      batch_size=100, train_steps=100, weight_decay=.1, distribution_strategy='off')
  found = training_runs.weights(tmp_path)['last/bias']
  np.testing.assert_allclose(found, bias, rtol=1e-4, atol=1e-4)
  assert found[0] - found[1] > 1.5  # Of ln 7 = 1.95 at the end.


@pytest.fixture
def first_steps(tmp_path):
  """Trains two steps, and returns the changes of all weights in each."""
  def train(name, **values):
    folder = tmp_path / name
    training_runs.train(folder, **{
        'optimizer': 'sgd', 'learning_rate': 1, 'batch_size': 48, 'train_steps': 2,
        'save_checkpoints_steps': 1, 'distribution_strategy': 'off', **values})
    states = [training_runs.weights(folder, step) for step in range(3)]
    return [{name: after[name] - before[name] for name in before}
            for before, after in zip(states, states[1:])]

  return train


def test_the_global_norm_is_clipped(first_steps, tmp_path):
  free, _ = first_steps('free')
  norm = np.linalg.norm(np.concatenate([np.ravel(change) for change in free.values()]))
  clipped = first_steps('clipped', gradient_clip_norm=norm / 4)
  assert_same(clipped[0], {name: change / 4 for name, change in free.items()}, 1e-4)
  assert_same(first_steps('wide', gradient_clip_norm=norm * 2)[0], free, 1e-6)
  for strategy, replicas in (('mirrored', 2), ('central_storage', 3)):
    for found, expected in zip(clipped, first_steps(
        strategy, gradient_clip_norm=norm / 4, distribution_strategy=strategy,
        num_cpu_replicas=replicas)):
      assert_same(found, expected, 1e-4)
  # The norm is that of the gradients without the loss scale of 2 ** 15.
  mixed, _ = first_steps('mixed', gradient_clip_norm=norm / 4, dtype='mixed', num_cpu_replicas=2,
                         distribution_strategy='mirrored')
  assert_same(mixed, clipped[0], 1e-4)
  logged = training_runs.scalars(tmp_path / 'mixed', 'gradient_norm')[1]
  assert logged == pytest.approx(norm / 4, rel=1e-3)


def test_the_logged_norm_of_clipped_gradients(tmp_path):
  """Each of the four gradients has the same norm; on two replicas, their sums are clipped."""
  for replicas in (1, 2):
    folder = tmp_path / str(replicas)
    training_runs.train(folder, model='own_models:compiled_with_clipnorm', batch_size=48,
                        train_steps=1, log_every_steps=1, num_cpu_replicas=replicas)
    assert training_runs.scalars(folder, 'gradient_norm')[1] == pytest.approx(.01 * 4 ** .5)


@pytest.mark.parametrize('is_sparse', [False, True])
@pytest.mark.parametrize('name', OPTIMIZERS)
def test_two_learning_rates(name, is_sparse):
  """Of two variables with the same values and gradients, one has a quarter of the rate."""
  with tf.Graph().as_default(), tf.Session() as session:
    gradient = tf.constant([[1., -2.], [3., .5]])
    if is_sparse:
      gradient = tf.IndexedSlices(gradient, tf.constant([1, 1]), tf.constant([2, 2]))
    variables = [tf.Variable(tf.ones([2, 2]), use_resource=True, name=name) for name in 'ab']
    optimizer = make_optimizer(name, .1)
    add_weight_decay(tf.keras.Sequential(), optimizer, .1)
    add_mixins(optimizer, [(BackboneRateScaling, {
        'backbone_factor': .25, 'head_weight_names': {variables[0].op.name}})])
    copy = copy_optimizer(optimizer, read_hyperparameters(optimizer))
    step = copy.apply_gradients([(gradient, variable) for variable in variables])
    session.run(tf.global_variables_initializer())
    session.run(step)
    fast, slow = (session.run(variable) - 1 for variable in variables)
    assert fast.any()
    np.testing.assert_allclose(slow, fast / 4, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize('values', [
    {'distribution_strategy': 'mirrored', 'dtype': 'mixed', 'ema_decay': .9},
    {'distribution_strategy': 'central_storage', 'gradient_accumulation_steps': 2}])
def test_two_learning_rates_on_replicas(first_steps, values):
  whole, _ = first_steps('whole', num_cpu_replicas=2, **values)
  found, _ = first_steps('scaled', num_cpu_replicas=2, backbone_lr_factor=.25, **values)
  assert_same(found, {name: change * (1 if name.startswith('dense_1/') else .25)
                      for name, change in whole.items()}, 1e-4)


@pytest.mark.parametrize('values', [
    {'optimizer': 'adamw', 'learning_rate': .01, 'weight_decay': .1, 'backbone_lr_factor': .1},
    {'optimizer': 'lars', 'learning_rate': 1, 'weight_decay': .1, 'dtype': 'mixed',
     'ema_decay': .9},
    {'optimizer': 'lamb', 'learning_rate': .01, 'lr_schedule': 'cosine', 'dtype': 'mixed'},
    {'optimizer': 'momentum', 'learning_rate': .1, 'gradient_clip_norm': .01}])
def test_resumes_bit_by_bit(tmp_path, values):
  """On two replicas, with the state of the optimizer, the schedule and the clipping."""
  for name, stops in (('whole', [None]), ('resumed', [2, None])):
    for stop in stops:
      training_runs.train(tmp_path / name, end_step=stop, batch_size=48, train_steps=4,
                          num_cpu_replicas=2, **values)
  whole, resumed = (training_runs.variables(tmp_path / name) for name in ('whole', 'resumed'))
  assert any(name.endswith(('/v', '/momentum')) for name in whole)
  assert_same(resumed, whole, 0)

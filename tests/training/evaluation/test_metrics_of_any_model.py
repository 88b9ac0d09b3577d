"""Evaluation of any model: as if all examples were one batch, whatever the batch size is."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from numpy.testing import assert_allclose

from estimator_train.tf_patches.model_copies import ModelCopier
from estimator_train.training.converter import to_estimator

COUNT = 23
layers = tf.keras.layers


def numbers(*shape):
  return np.random.RandomState(len(shape)).uniform(-1, 1, (COUNT,) + shape).astype(np.float32)


FEATURES, WEIGHTS = numbers(3), np.linspace(.1, 3, COUNT).astype(np.float32)
WORDS = np.random.RandomState(0).randint(0, 6, (COUNT, 4)).astype(np.int32)


def evaluate(build, features, labels, batch_size, tmp_path):
  """Returns the metrics of a model with its initial weights, its outputs, and its loss."""
  tf.keras.backend.clear_session()
  model = build()
  config = tf.estimator.RunConfig(str(tmp_path), tf_random_seed=3)
  estimator = to_estimator(ModelCopier(model), config, num_classes=0)
  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(3)
    tf.train.create_global_step()
    batch = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(
        (features, labels)).batch(batch_size)).get_next()
    spec = estimator.model_fn(*batch, tf.estimator.ModeKeys.EVAL, estimator.config)
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    updates = [update for _, update in spec.eval_metric_ops.values()]
    for _ in range(-(-COUNT // batch_size)):
      *_, outputs, loss = session.run(updates + [spec.predictions, spec.loss])
    return ({name: session.run(value) for name, (value, _) in spec.eval_metric_ops.items()},
            outputs, loss)


def mean_error(labels, outputs):
  return tf.reduce_mean(tf.abs(labels - outputs))


def regression(loss='mse', metrics=None, **options):
  def build():
    model = tf.keras.Sequential([layers.Dense(4, 'tanh', input_shape=[3]), layers.Dense(1)])
    model.compile('sgd', loss, metrics and metrics(), **options)
    return model

  return build


def two_inputs_and_outputs():
  first, second = layers.Input([3], name='first'), layers.Input([4], dtype=tf.int32, name='second')
  hidden = layers.concatenate([first, layers.Flatten()(layers.Embedding(6, 2)(second))])
  hidden = layers.Dense(5, 'relu', kernel_regularizer=tf.keras.regularizers.l2(.1))(hidden)
  model = tf.keras.Model([first, second], [layers.Dense(2, name='point')(hidden),
                                           layers.Dense(3, 'softmax', name='kind')(hidden)])
  model.compile('sgd', {'kind': 'sparse_categorical_crossentropy', 'point': 'mse'},
                {'kind': ['accuracy'], 'point': ['mae']}, {'kind': .25, 'point': 3.})
  return model


def masked():
  model = tf.keras.Sequential([
      layers.Embedding(6, 3, mask_zero=True, input_length=4), layers.LSTM(4, return_sequences=True),
      layers.Dense(6, 'softmax')])
  model.compile('sgd', 'sparse_categorical_crossentropy', ['accuracy'])
  return model


def binary():
  model = tf.keras.Sequential([layers.Dense(1, 'sigmoid', input_shape=[3])])
  model.compile('sgd', 'binary_crossentropy', [
      'accuracy', tf.keras.metrics.AUC(name='auc'), tf.keras.metrics.Precision(name='precision')])
  return model


def of_regression(metrics, labels, outputs):
  errors = outputs.ravel() - labels.ravel()
  return {'mean_error': np.abs(errors).mean(),
          'root_mean_squared_error': np.sqrt((errors ** 2).mean())}


def of_weighted_regression(metrics, labels, outputs):
  """Keras would multiply the mean loss of a batch of flat labels by the weights."""
  errors = outputs.ravel() - labels.ravel()
  name, = (name for name in metrics if 'absolute' in name)
  return {'average_loss': (WEIGHTS * errors ** 2).mean(),
          name: (WEIGHTS * np.abs(errors)).sum() / WEIGHTS.sum()}


def of_two_outputs(metrics, labels, outputs):
  assert metrics['regularization_loss'] > 0
  return {'point_loss': ((outputs['point'] - labels['point']) ** 2).mean(),
          'kind_acc': (outputs['kind'].argmax(1) == labels['kind']).mean(),
          'average_loss': 3 * metrics['point_loss'] + .25 * metrics['kind_loss']}


def of_words(metrics, labels, outputs):
  losses = -np.log(np.take_along_axis(outputs, labels[..., np.newaxis], -1)[..., 0])
  return {'average_loss': (losses * (labels > 0)).mean()}


def of_classes(metrics, labels, outputs):
  assert {'auc', 'precision'} <= metrics.keys()
  return {'acc': ((outputs.ravel() > .5) == labels).mean()}


def own_metrics():
  return ['mae', mean_error, tf.keras.metrics.RootMeanSquaredError()]


WEIGHTED = {'features': FEATURES, 'sample_weights': WEIGHTS}


# A model, its features and labels, and a function of some metrics as NumPy computes them.
@pytest.mark.parametrize('build, features, labels, expect', [
    *((regression(loss, own_metrics), FEATURES, labels, of_regression) for loss, labels in (
        ('mse', numbers()), ('mae', numbers(1)), (tf.keras.losses.Huber(), numbers()),
        (mean_error, numbers(1)))),
    *((regression(weighted_metrics=['mae']), WEIGHTED, labels, of_weighted_regression)
      for labels in (numbers(), numbers(1))),
    (two_inputs_and_outputs, {'second': WORDS, 'first': FEATURES},
     {'point': numbers(2), 'kind': np.arange(COUNT) % 3}, of_two_outputs),
    (masked, WORDS, WORDS, of_words),
    (binary, FEATURES, (FEATURES[:, 0] > 0).astype(np.int64), of_classes),
], ids=['mse', 'mae', 'Huber', 'function', 'flat weights', 'weights', 'two outputs', 'masked',
        'streaming'])
def test_small_batches_are_as_one_batch(build, features, labels, expect, tmp_path):
  whole, outputs, loss = evaluate(build, features, labels, COUNT, tmp_path / 'whole')
  metrics, _, _ = evaluate(build, features, labels, 5, tmp_path / 'parts')
  assert metrics.keys() == whole.keys() and metrics['examples'] == COUNT
  regularization = metrics.get('regularization_loss', 0.)
  assert_allclose(metrics['average_loss'] + regularization, loss, rtol=1e-5)
  expected = expect(metrics, labels, outputs if len(outputs) > 1 else next(iter(outputs.values())))
  for name, value in list(whole.items()) + list(expected.items()):
    assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)


def test_a_sum_over_the_batch_is_divided_by_the_examples(tmp_path):
  losses = [evaluate(regression(tf.keras.losses.MeanSquaredError(reduction)), FEATURES, numbers(1),
                     5, tmp_path / reduction)[0]['average_loss'] for reduction in ('sum', 'auto')]
  assert_allclose(losses[0], losses[1], rtol=1e-5)

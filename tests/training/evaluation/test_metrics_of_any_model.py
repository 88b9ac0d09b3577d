"""Evaluation of any model: as if all examples were one batch, whatever the batch size is."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from numpy.testing import assert_allclose

from estimator_train.training.converter import to_estimator

COUNT = 23
layers = tf.keras.layers


def numbers(*shape):
  return np.random.RandomState(len(shape)).uniform(-1, 1, (COUNT,) + shape).astype(np.float32)


FEATURES, WEIGHTS = numbers(3), np.linspace(.1, 3, COUNT).astype(np.float32)
WORDS = np.random.RandomState(0).randint(0, 6, (COUNT, 4)).astype(np.int32)


def evaluate(build, features, labels, batch_size, tmp_path):
  """Returns the exact metrics of a model with its initial weights."""
  tf.keras.backend.clear_session()
  model = build()
  estimator = to_estimator(model, tf.estimator.RunConfig(str(tmp_path), tf_random_seed=3),
                           num_classes=0)
  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(3)
    tf.train.create_global_step()
    batch = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(
        (features, labels)).batch(batch_size)).get_next()
    spec = estimator.model_fn(*batch, tf.estimator.ModeKeys.EVAL, estimator.config)
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    updates = [update for _, update in spec.eval_metric_ops.values()]
    outputs, expected_loss = [], []
    for _ in range(-(-COUNT // batch_size)):
      *_, output, loss = session.run(updates + [spec.predictions, spec.loss])
      outputs.append(output)
      expected_loss.append(loss)
    return ({name: session.run(value) for name, (value, _) in spec.eval_metric_ops.items()},
            {name: np.concatenate([output[name] for output in outputs]) for name in outputs[0]},
            expected_loss)


def as_one_batch(build, features, labels, tmp_path, batch_size=5):
  """Checks that small batches give the loss and the metrics of one batch with all examples."""
  whole, outputs, losses = evaluate(build, features, labels, COUNT, tmp_path / 'whole')
  metrics, _, _ = evaluate(build, features, labels, batch_size, tmp_path / 'parts')
  assert metrics.keys() == whole.keys() and metrics['examples'] == COUNT
  for name, value in metrics.items():
    assert_allclose(value, whole[name], rtol=1e-5, err_msg=name)
  regularization = metrics.get('regularization_loss', 0.)
  assert_allclose(metrics['average_loss'] + regularization, losses[0], rtol=1e-5)
  return metrics, outputs


def regression(loss='mse', make_metrics=lambda: None, **options):
  def build():
    model = tf.keras.Sequential([layers.Dense(4, 'tanh', input_shape=[3]), layers.Dense(1)])
    model.compile('sgd', loss, make_metrics(), **options)
    return model
  return build


def mean_error(labels, outputs):
  return tf.reduce_mean(tf.abs(labels - outputs))


@pytest.mark.parametrize('loss', ['mse', 'mae', tf.keras.losses.Huber(), mean_error])
@pytest.mark.parametrize('labels', [numbers(), numbers(1)], ids=['flat', 'column'])
def test_regression(loss, labels, tmp_path):
  metrics, outputs = as_one_batch(
      regression(loss, lambda: ['mae', mean_error, tf.keras.metrics.RootMeanSquaredError()]),
      FEATURES, labels, tmp_path)
  (predicted,) = outputs.values()
  errors = predicted.ravel() - labels.ravel()
  assert_allclose(metrics['mean_error'], np.abs(errors).mean(), rtol=1e-5)
  assert_allclose(metrics['root_mean_squared_error'], np.sqrt((errors ** 2).mean()), rtol=1e-5)


@pytest.mark.parametrize('labels', [numbers(), numbers(1)], ids=['flat', 'column'])
def test_sample_weights(labels, tmp_path):
  """Keras would multiply the mean loss of a batch of flat labels by the weights."""
  metrics, outputs = as_one_batch(
      regression(weighted_metrics=['mae']),
      {'features': FEATURES, 'sample_weights': WEIGHTS}, labels, tmp_path)
  (predicted,) = outputs.values()
  errors = predicted.ravel() - labels.ravel()
  assert_allclose(metrics['average_loss'], (WEIGHTS * errors ** 2).mean(), rtol=1e-5)
  (weighted,) = (value for name, value in metrics.items() if 'absolute' in name)
  assert_allclose(weighted, (WEIGHTS * np.abs(errors)).sum() / WEIGHTS.sum(), rtol=1e-5)


def test_a_sum_over_the_batch_is_divided_by_the_examples(tmp_path):
  loss = tf.keras.losses.MeanSquaredError(reduction='sum')
  metrics, outputs, _ = evaluate(regression(loss), FEATURES, numbers(1), 5, tmp_path)
  (predicted,) = outputs.values()
  assert_allclose(metrics['average_loss'], ((predicted - numbers(1)) ** 2).mean(), rtol=1e-5)


def two_of_each():
  first, second = layers.Input([3], name='first'), layers.Input([4], dtype=tf.int32, name='second')
  hidden = layers.concatenate([first, layers.Flatten()(layers.Embedding(6, 2)(second))])
  hidden = layers.Dense(5, 'relu', kernel_regularizer=tf.keras.regularizers.l2(.1))(hidden)
  model = tf.keras.Model([first, second], [layers.Dense(2, name='point')(hidden),
                                           layers.Dense(3, 'softmax', name='kind')(hidden)])
  model.compile('sgd', {'kind': 'sparse_categorical_crossentropy', 'point': 'mse'},
                {'kind': ['accuracy'], 'point': ['mae']}, {'kind': .25, 'point': 3.})
  return model


def test_two_inputs_and_outputs(tmp_path):
  labels = {'point': numbers(2), 'kind': np.arange(COUNT) % 3}
  metrics, outputs = as_one_batch(two_of_each, {'second': WORDS, 'first': FEATURES}, labels,
                                  tmp_path)
  assert_allclose(metrics['point_loss'], ((outputs['point'] - labels['point']) ** 2).mean(),
                  rtol=1e-5)
  assert_allclose(metrics['kind_acc'], (outputs['kind'].argmax(1) == labels['kind']).mean(),
                  rtol=1e-5)
  assert_allclose(metrics['average_loss'], 3 * metrics['point_loss'] + .25 * metrics['kind_loss'],
                  rtol=1e-6)
  assert metrics['regularization_loss'] > 0


def masked():
  model = tf.keras.Sequential([
      layers.Embedding(6, 3, mask_zero=True, input_length=4), layers.LSTM(4, return_sequences=True),
      layers.Dense(6, 'softmax')])
  model.compile('sgd', 'sparse_categorical_crossentropy', ['accuracy'])
  return model


def test_masked_sequences(tmp_path):
  metrics, outputs = as_one_batch(masked, WORDS, WORDS, tmp_path)
  (predicted,) = outputs.values()
  losses = -np.log(np.take_along_axis(predicted, WORDS[..., np.newaxis], -1)[..., 0])
  assert_allclose(metrics['average_loss'], (losses * (WORDS > 0)).mean(), rtol=1e-5)


def test_streaming_metrics(tmp_path):
  def build():
    model = tf.keras.Sequential([layers.Dense(1, 'sigmoid', input_shape=[3])])
    model.compile('sgd', 'binary_crossentropy', ['accuracy', tf.keras.metrics.AUC(name='auc'),
                                                 tf.keras.metrics.Precision(name='precision')])
    return model

  labels = (FEATURES[:, 0] > 0).astype(np.int64)
  metrics, outputs = as_one_batch(build, FEATURES, labels, tmp_path)
  (predicted,) = outputs.values()
  assert_allclose(metrics['acc'], ((predicted.ravel() > .5) == labels).mean(), rtol=1e-5)

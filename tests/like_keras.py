"""Compares Estimators of `convert` with plain Keras: predictions, trained weights and metrics.

The layers, models and metrics are as users write them: their configurations lack arguments.
"""

import numpy as np
import tensorflow.compat.v1 as tf
import training_runs

import estimator_train

keras = tf.keras
layers = tf.keras.layers

RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(24, 6)).astype(np.float32)
Y = RANDOM.normal(size=(24, 1)).astype(np.float32)
CLASSES = (X[:, 0] > 0).astype(int)
ONE_HOT = np.eye(2, dtype=np.float32)[CLASSES]
# Optimizing the graphs would take longer than running them.
SESSION_CONFIG = tf.ConfigProto(graph_options=tf.GraphOptions(
    optimizer_options=tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0)))


def make_config(folder, **options):
  return tf.estimator.RunConfig(str(folder), **{
      'session_config': SESSION_CONFIG, 'save_summary_steps': None, 'log_step_count_steps': None,
      **options})


def convert(model, folder, **options):
  return estimator_train.convert(model, **{'config': make_config(folder), **options})


def in_batches(values, batch_size=1000, epochs=1, drop_remainder=False):
  """Returns an `input_fn` of slices of arrays, such as (features, labels)."""
  return lambda: tf.data.Dataset.from_tensor_slices(values).repeat(epochs).batch(
      batch_size, drop_remainder)


def predict(estimator, input_fn):
  """Returns the values of each output of a model, in the order of the outputs' names."""
  predictions = list(estimator.predict(input_fn))
  return [np.array([prediction[name] for prediction in predictions])
          for name in sorted(predictions[0])]


def assert_near(value, expected, what, tolerance=1e-5):
  np.testing.assert_allclose(value, expected, rtol=0, err_msg=what,
                             atol=tolerance * max(1., np.abs(expected).max()))


def compare(model, folder, arrays, make_input_fn=None, *, batch_size=8, replicas=(1,),
            eval_batch_size=1000, predicts=True, hooks=None, uncompared=(), tolerance=1e-5,
            **options):
  """Compares an Estimator with its model: predictions, then training, then an evaluation.

  Args:
    model: a compiled model; it is trained, too.
    folder: for checkpoints.
    arrays: features, labels and, optionally, sample weights, in the form that Keras takes.
    make_input_fn: makes an `input_fn` of the arrays in batches of a given size; None: in_batches.
    batch_size: of all replicas; the model is trained once on each of these batches.
    replicas: the numbers of replicas with which the model is converted and trained, one after the
      other; but for the first, from a checkpoint, and with half the learning rate.
    eval_batch_size: the size of the batches of the evaluation by the Estimator.
    predicts: whether to compare predictions of untrained models.
    hooks: for the training of the Estimator.
    uncompared: names of metrics that differ for a good reason.
    tolerance: the largest difference of weights; at least 1e-5 for the evaluation.
    **options: for `convert`.

  Returns:
    The result of the Estimator's evaluation.
  """
  make_input_fn = make_input_fn or (lambda size: in_batches(arrays, size))
  num_examples = len(tf.nest.flatten(arrays)[0])
  for count in replicas:
    estimator = convert(model, folder, **({'num_cpu_replicas': count} if count > 1 else {}),
                        **options)
    if predicts and estimator.latest_checkpoint() is None:
      predictions = predict(estimator, make_input_fn(1000))
      expected = model.predict(arrays[0])
      for index, value in enumerate(expected if isinstance(expected, list) else [expected]):
        assert_near(predictions[index], value, 'predictions of output {}'.format(index))
    optimizer, weights = model.optimizer, model.get_weights() if model.built else []
    # Not to the end of the data, where TensorFlow 1.15 updates once more what does not depend on
    # the batch, such as Nadam's momentum cache, and where its input for several replicas may hang.
    estimator.train(make_input_fn(batch_size // count), hooks, -(-num_examples // batch_size))
    assert model.optimizer is optimizer
    for weight, value in zip(weights, model.get_weights() if weights else []):
      np.testing.assert_array_equal(weight, value, 'the model must not change')
    model.fit(*arrays[:2], batch_size, verbose=0, shuffle=False,
              sample_weight=arrays[2] if len(arrays) > 2 else None)
    if len(replicas) > 1:
      optimizer.learning_rate = keras.backend.get_value(optimizer.learning_rate) / 2
  results = estimator.evaluate(make_input_fn(eval_batch_size))
  variables = list(training_runs.variables(folder).values())
  for index, weight in enumerate(model.get_weights()):  # The names depend on the graph.
    distances = [np.abs(value - weight).max() for value in variables
                 if np.shape(value) == weight.shape]
    assert_near(min(distances), 0, 'weight {}'.format(index), tolerance)
  of_keras = model.evaluate(*arrays[:2], num_examples, 0, *arrays[2:])  # As one batch.
  expected, tolerance = dict(zip(model.metrics_names, np.ravel(of_keras))), max(tolerance, 1e-5)
  loss = expected.pop('loss')
  if eval_batch_size >= results['examples']:
    assert_near(results['loss'], loss, 'loss of the batch', tolerance)
  if 'confusion_matrix' not in results or not model.losses:  # A classifier reports these alone.
    average_loss = results['average_loss'] + results.get('regularization_loss', 0)
    assert_near(average_loss, loss, 'loss', tolerance)
  for name in set(expected) - set(uncompared):
    assert_near(results[name], expected[name], name, tolerance)
  return results


class Scale(layers.Layer):
  """A layer whose configuration lacks its argument."""

  def __init__(self, factor=1., **options):
    super().__init__(**options)
    self.factor = factor

  def call(self, inputs):
    return inputs * self.factor

  def get_config(self):
    return super().get_config()


class ScaledMean(keras.metrics.Mean):
  """A metric whose configuration lacks its argument."""

  def __init__(self, factor=1., name='scaled_mean', **options):
    super().__init__(name, **options)
    self.factor = factor

  def update_state(self, y_true, y_pred, sample_weight=None):
    return super().update_state(self.factor * y_pred)


class Subclass(keras.Model):
  """A model that is defined by its `call`, of layers that its constructor takes."""

  def __init__(self, *parts):
    super().__init__()
    self.parts = list(parts)

  def call(self, inputs):
    return apply(self.parts, inputs)


def apply(parts, values):
  for layer in parts:
    values = layer(values)
  return values

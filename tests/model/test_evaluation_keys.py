"""Losses of outputs and metrics whose names are those of other figures: each has its own key."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from like_keras import X, Y, convert, in_batches

import estimator_train
from estimator_train.model import evaluation_metrics
from estimator_train.model.evaluation_metrics import make_metric_keys

keras = tf.keras
# Of files and results: the names of their own figures, which a model may use, too.
NAMES = sorted(evaluation_metrics._RESERVED_KEYS) + ['examples_per_sec']
OUTPUTS = ['average', 'regularization', 'metric_value']


def constant(name, value):
  def metric(true, _):
    return tf.zeros_like(true[:, 0]) + value

  metric.__name__ = name
  return metric


def several_outputs():
  """Returns a model that also has two metrics of the same name, 2 and 3."""
  class AddMetric(keras.layers.Layer):
    def call(self, values):
      self.add_metric(tf.zeros_like(values[:, 0]) + len(self.name), 'mean', 'same')
      return values

  number = keras.Input((1,), name='number')
  hidden = AddMetric(name='abc')(AddMetric(name='ab')(number))
  made = keras.Model(number, [
      keras.layers.Dense(1, name=name, kernel_regularizer='l2')(hidden) for name in OUTPUTS])
  made.compile('sgd', 'mse')
  return made


def single_output():
  """Returns a model whose metrics have the names in NAMES, and their indices as values."""
  number = keras.Input((1,), name='number')
  made = keras.Model(number, keras.layers.Dense(1, name='x', kernel_regularizer='l2')(number))
  made.compile('sgd', 'mse', [constant(name, index) for index, name in enumerate(NAMES)])
  return made


def _dataset(num_outputs):
  def make():
    return tf.data.Dataset.from_tensor_slices((X[:, :1], (Y,) * num_outputs))

  split = estimator_train.ExampleSplit(make)
  return estimator_train.DataSet('numbers', (), None, split, split)


def labels_of_three():
  return _dataset(3)


def labels_of_one():
  return _dataset(1)


def records(folder):
  """Returns the records of an evaluation: its file, its line of metrics.jsonl, and best.json."""
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  (line,) = [line for line in map(json.loads, lines) if line['kind'] == 'evaluation']
  return [json.loads((folder / 'evaluation.json').read_text()), line,
          json.loads((folder / 'best' / 'best.json').read_text())]


@pytest.mark.parametrize('outputs, metrics, num_classes, keys', [
    (['a', 'b'], ['mae'], 0, 'a_loss b_loss mae'),
    (['average', 'b'], ['b_loss'], 0, 'output_average_loss b_loss metric_b_loss'),
    (['average', 'output_average'], [], 0, 'output_output_average_loss output_average_loss'),
    (['a'], ['accuracy', 'macro_f1', 'kind'], 0, 'accuracy macro_f1 metric_kind'),
    (['a'], ['accuracy', 'macro_f1', 'acc'], 2, 'metric_accuracy metric_macro_f1 acc'),
    # Those of `convert` keep their names.
    (['average', 'b'], ['average_loss', 'loss', 'b_loss'], None,
     'output_average_loss output_b_loss average_loss metric_loss b_loss')])
def test_keys_are_distinct(outputs, metrics, num_classes, keys):
  found = make_metric_keys(outputs, metrics, num_classes)
  assert [*found.losses.values(), *found.metrics.values()] == keys.split()


def test_losses_of_outputs(tmp_path):
  settings = estimator_train.Settings(
      dataset=labels_of_three, model=several_outputs, model_dir=str(tmp_path), batch_size=8,
      train_steps=2, best_metric='output_average_loss')
  result = estimator_train.train(settings)
  for record in [*records(tmp_path), result]:
    losses = [record[name] for name in (
        'output_average_loss', 'output_regularization_loss', 'metric_value_loss')]
    assert record['average_loss'] == pytest.approx(sum(losses))
    assert 0 < record['regularization_loss'] < min(losses)
    assert record['loss'] == record['average_loss'] + record['regularization_loss']
    assert (record['same'], record['same_1']) == (2, 3)


def test_names_of_metrics(tmp_path):
  settings = estimator_train.Settings(
      dataset=labels_of_one, model=single_output, model_dir=str(tmp_path), batch_size=8,
      train_steps=2)
  result = estimator_train.train(settings)
  found, evaluated = records(tmp_path), estimator_train.evaluate(settings)
  # Keras gives a number to the name of the loss.
  keys = [{'loss': 'loss_1', 'examples_per_sec': name}.get(name, 'metric_' + name)
          for name in NAMES]
  for record in [*found, result['best'], evaluated]:
    assert [record[key] for key in keys] == pytest.approx(list(range(len(NAMES))))
    assert set(record) - set(keys) <= evaluation_metrics._RESERVED_KEYS
  assert result['examples_per_sec'] != len(NAMES) - 1
  assert result['metric_time'] == NAMES.index('time')


def test_estimators_of_convert(tmp_path):
  several = several_outputs()
  result = convert(several, tmp_path / 'a').evaluate(in_batches((X[:, :1], (Y,) * 3)))
  losses = [result[name] for name in (
      'output_average_loss', 'output_regularization_loss', 'metric_value_loss')]
  assert result['average_loss'] == pytest.approx(sum(losses), rel=1e-5)
  assert result['loss'] == pytest.approx(
      several.evaluate(X[:, :1], [Y] * 3, verbose=0)[0], rel=1e-4)
  named_like_the_step = keras.Sequential([keras.layers.Dense(1, input_shape=(6,))])
  named_like_the_step.compile('sgd', 'mse', [constant('global_step', 5.), constant('examples', 6.)])
  result = convert(named_like_the_step, tmp_path / 'b').evaluate(in_batches((X, Y)))
  assert (result['metric_global_step'], result['global_step'], result['examples']) == (5, 0, 6)
  assert np.isfinite(result['average_loss'])

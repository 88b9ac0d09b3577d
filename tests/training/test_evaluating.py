"""Evaluation in a graph that is built once: the figures of Estimator, and training untouched."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from conftest import keras_session

from estimator_train.data.run_data import make_batching
from estimator_train.training.evaluation import Evaluator


def train(folder, **values):
  """Trains nine steps, and returns the settings and the figures of each evaluation."""
  evaluated = []

  def report(figures, samples):
    evaluated.append(figures)
    return figures

  run, _ = training_runs.train(
      folder, report, mode='train_and_evaluate', model='own_models:with_dropout', train_steps=9,
      batch_size=48, optimizer='sgd', learning_rate=0.1, distribution_strategy='off',
      intra_op_parallelism_threads=1, keep_checkpoint_max=9, **values)
  return run.settings, evaluated


@pytest.fixture(scope='module')
def evaluated_run(tmp_path_factory):
  return train(tmp_path_factory.mktemp('run'), eval_every_steps=2)


def test_figures_are_those_of_estimator(evaluated_run):
  settings, evaluated = evaluated_run
  run, model = training_runs.prepare(settings)
  for counted in evaluated[:2]:
    expected = model.estimator.evaluate(
        run.data.test.make_eval_input_fn(make_batching(
            run.data.dataset, settings, True, run.engine.examples_per_replica)),
        checkpoint_path=counted['checkpoint'], name='estimators')
    assert counted['confusion_matrix'] == expected['confusion_matrix'].tolist()
    for name in ('global_step', 'accuracy', 'average_loss'):
      assert counted[name] == expected[name]
  assert [counted['global_step'] for counted in evaluated] == [2, 4, 6, 8]
  assert evaluated[0]['average_loss'] != evaluated[1]['average_loss']
  found, expected = (
      {(event.step, value.tag): value.simple_value
       for event in training_runs.events(Path(settings.run.model_dir) / folder)
       for value in event.summary.value
       if value.HasField('simple_value') and event.step <= 4}
      for folder in ('eval', 'eval_estimators'))
  assert found == expected and (4, 'accuracy') in found


def test_training_goes_on_as_if_there_was_no_evaluation(evaluated_run, tmp_path):
  """Bit by bit, with dropout, whose masks are drawn from the state of the session."""
  train(tmp_path, save_checkpoints_steps=2)
  found, expected = map(training_runs.variables, (evaluated_run[0].model_dir, tmp_path))
  assert 'dense/kernel' in found
  training_runs.assert_same(found, expected, 0)


def test_evaluation_leaves_keras_alone(evaluated_run):
  evaluator = Evaluator(*training_runs.prepare(evaluated_run[0]))
  with keras_session() as session:
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,))])
    before = model.get_weights()
    evaluator.evaluate()
    assert tf.keras.backend.get_session() is session
    assert tf.get_default_graph() is session.graph
    np.testing.assert_array_equal(model.get_weights()[0], before[0])

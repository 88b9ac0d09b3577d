"""Evaluation in a graph that is built once: the figures of Estimator, and training untouched."""

import numpy as np
import tensorflow.compat.v1 as tf
import training_runs

from estimator_train.inputs import factory
from estimator_train.settings import Settings
from estimator_train.training.evaluation.evaluator import Evaluator

COMMON = {'model': 'own_models:with_dropout', 'batch_size': 48, 'optimizer': 'sgd',
          'learning_rate': 0.1, 'distribution_strategy': 'off', 'intra_op_parallelism_threads': 1}


def train(folder, **values):
  evaluated = []

  def report(settings, labels, figures, samples):
    evaluated.append(figures)
    return figures

  settings = Settings(mode='train_and_evaluate', model_dir=str(folder), **dict(COMMON, **values))
  training_runs.train(settings, report)
  return settings, evaluated


def weights(folder):
  path = tf.train.latest_checkpoint(str(folder))
  return {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}


def test_figures_are_those_of_estimator(tmp_path):
  settings, evaluated = train(tmp_path, train_steps=6, eval_every_steps=2)
  plan, model = training_runs.prepare(settings)
  for counted in evaluated:
    expected = model.estimator.evaluate(
        factory.make_eval_input_fn(plan.data.dataset, settings, True,
                                   plan.engine.examples_per_replica),
        checkpoint_path=counted['checkpoint'], name='estimators')
    assert counted['global_step'] == expected['global_step']
    assert counted['accuracy'] == expected['accuracy']
    assert counted['average_loss'] == expected['average_loss']
    assert counted['confusion_matrix'] == expected['confusion_matrix'].tolist()
  assert [counted['global_step'] for counted in evaluated] == [2, 4]
  assert evaluated[0]['average_loss'] != evaluated[1]['average_loss']
  tags = [{(event.step, value.tag): value.simple_value
           for path in tmp_path.glob(folder + '/events*')
           for event in tf.train.summary_iterator(str(path)) for value in event.summary.value
           if value.HasField('simple_value')} for folder in ('eval', 'eval_estimators')]
  assert tags[0] == tags[1] and (4, 'accuracy') in tags[0]


def test_training_goes_on_as_if_there_was_no_evaluation(tmp_path):
  """Bit by bit, with dropout, whose masks are drawn from the state of the session."""
  _, evaluated = train(tmp_path / 'with', train_steps=9, eval_every_steps=2)
  train(tmp_path / 'without', train_steps=9, save_checkpoints_steps=2)
  assert len(evaluated) == 4
  found, expected = weights(tmp_path / 'with'), weights(tmp_path / 'without')
  assert set(found) == set(expected) and 'dense/kernel' in found
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, name)


def test_evaluation_leaves_keras_alone(tmp_path):
  settings, _ = train(tmp_path, train_steps=1)
  evaluator = Evaluator(*training_runs.prepare(settings))
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    try:
      model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,))])
      before = model.get_weights()
      evaluator.evaluate()
      assert tf.keras.backend.get_session() is session
      assert tf.get_default_graph() is session.graph
      np.testing.assert_array_equal(model.get_weights()[0], before[0])
    finally:
      tf.keras.backend.set_session(None)

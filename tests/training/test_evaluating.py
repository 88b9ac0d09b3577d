"""Evaluation in a graph that is built once: the figures of Estimator, and training untouched."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from conftest import keras_session

from estimator_train.data import mnist
from estimator_train.data.binary_files import IdxSource
from estimator_train.data.opening import make_eval_input_fn
from estimator_train.errors import UserError
from estimator_train.run_dir.step_clock import StepClock
from estimator_train.settings import Settings
from estimator_train.training import selection
from estimator_train.training.evaluation import EvaluateAfterSave, Evaluator
from estimator_train.training.evaluation_steps import EvaluationSteps

CLOCK = StepClock(((0, 4),))


def train(folder, **values):
  """Trains nine steps, and returns the settings, and the figures and samples of evaluations."""
  report = mock.Mock(side_effect=lambda figures, samples: figures)
  run, _ = training_runs.train(
      folder, report, mode='train_and_evaluate', model='own_models:with_dropout', train_steps=9,
      batch_size=48, optimizer='sgd', learning_rate=0.1, distribution_strategy='off',
      intra_op_parallelism_threads=1, keep_checkpoint_max=9, **values)
  return (run.settings, *zip(*(arguments for arguments, _ in report.call_args_list)))


@pytest.fixture(scope='module')
def evaluated_run(tmp_path_factory):
  return train(tmp_path_factory.mktemp('run'), eval_every_steps=2)


def test_figures_are_those_of_estimator(evaluated_run):
  settings, evaluated, _ = evaluated_run
  run, model = training_runs.prepare(settings)
  for counted in evaluated[:2]:
    expected = model.estimator.evaluate(
        make_eval_input_fn(run.data.test, settings, True, run.engine.examples_per_replica),
        checkpoint_path=counted['checkpoint'], name='estimators')
    assert counted['confusion_matrix'] == expected['confusion_matrix'].tolist()
    for name in ('global_step', 'accuracy', 'average_loss'):
      assert counted[name] == expected[name]
  assert [counted['global_step'] for counted in evaluated] == [2, 4, 6, 8]
  found, expected = (
      {key: value for key, value in training_runs.all_scalars(
          Path(settings.run.model_dir) / folder).items() if key[0] <= 4}
      for folder in ('eval', 'eval_estimators'))
  assert found == expected and (4, 'accuracy') in found


def test_samples(evaluated_run):
  """Images that are evenly spaced, and the most confident mistakes of all."""
  settings, evaluated, all_samples = evaluated_run
  dataset = mnist.describe_data_set('fashion_mnist_sample')
  images, classes = IdxSource(dataset.spec, dataset.test).load_arrays()
  expected = np.linspace(0, len(images) - 1, 12).astype(int)
  run, model = training_runs.prepare(settings)
  for figures, samples in list(zip(evaluated, all_samples))[1:3]:
    assert [sample.identity for sample in samples.images] == [
        {'example': index} for index in expected]
    probabilities = np.stack([next(iter(outputs.values())) for outputs in model.estimator.predict(
        make_eval_input_fn(run.data.test, settings, True, 100), yield_single_examples=True,
        checkpoint_path=figures['checkpoint'])])
    predicted, confidences = probabilities.argmax(-1), probabilities.max(-1)
    mistakes = np.flatnonzero(predicted != classes)
    mistakes = mistakes[np.argsort(-confidences[mistakes], kind='stable')][:12]
    assert [sample.identity['example'] for sample in samples.mistakes] == mistakes.tolist()
    for sample in samples.images + samples.mistakes:
      index = sample.identity['example']
      np.testing.assert_array_equal(sample.image, images[index])
      assert sample.class_index == classes[index]
      np.testing.assert_allclose(sample.probabilities, probabilities[index], rtol=1e-4)


def test_training_goes_on_as_if_there_was_no_evaluation(evaluated_run, tmp_path):
  """Bit by bit, with dropout, whose masks are drawn from the state of the session."""
  train(tmp_path, save_checkpoints_steps=2)
  found, expected = map(training_runs.variables, (evaluated_run[0].model_dir, tmp_path))
  assert 'dense/kernel' in found
  training_runs.assert_same(found, expected, 0)


def test_evaluation_of_unknown_length_leaves_keras_alone(evaluated_run):
  """Its samples are the first examples, because their number is unknown."""
  run, prepared = training_runs.prepare(evaluated_run[0])
  run.data.test.num_examples = None
  with keras_session() as session:
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,))])
    before = model.get_weights()
    _, samples = Evaluator(run, prepared).evaluate(run.start.checkpoint)
    assert tf.keras.backend.get_session() is session
    assert tf.get_default_graph() is session.graph
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
  _, classes = run.data.test.load_arrays()
  assert [sample.class_index for sample in samples.images] == classes[:12].tolist()


@pytest.mark.parametrize('start_step, stop_at, peer_stops_at, evaluated', [
    (0, None, None, [13, 27, 30, 49]), (10, None, None, [10, 27, 30, 49]),
    (0, 27, None, [13, 27, 30]), (0, None, 30, [13, 27])])
def test_which_checkpoints_are_evaluated(tmp_path, start_step, stop_at, peer_stops_at, evaluated):
  """One in each ten steps, as parameter servers save them, and none when another task stops."""
  steps = []
  peers = SimpleNamespace(stop_step=None, announce_activity=lambda activity: contextlib.ExitStack())
  loop = SimpleNamespace(evaluate_and_find_stop_reason=lambda: steps.append(step) or (
      SimpleNamespace(text='good enough') if step == stop_at else None))
  listener = EvaluateAfterSave(
      SimpleNamespace(evaluation_steps=EvaluationSteps(CLOCK, every_steps=10), peers=peers,
                      start=SimpleNamespace(step=start_step), end_step=50,
                      run_dir=SimpleNamespace(path=str(tmp_path))),
      loop, SimpleNamespace(stop_signum=None), lambda kind: contextlib.ExitStack())
  for step in (start_step, 13, 19, 27, 30, 49, 50):
    if step == peer_stops_at or step - 3 == stop_at:  # All tasks announce a stop that one requests.
      peers.stop_step = step
    assert listener.after_save(step) == (stop_at is not None and step >= stop_at)
    if peers.stop_step is not None:
      break
  assert steps == evaluated


@pytest.mark.parametrize('given, expected', [
    ('mae', 'mean_absolute_error'), ('mean_absolute_error', 'mean_absolute_error'),
    (None, 'average_loss')])
def test_the_best_metric_may_be_abbreviated_as_in_compile(given, expected):
  with tf.Graph().as_default(), tf.Session():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    model.compile('sgd', 'mse', metrics=['mae'])
    flags = Settings(best_metric=given).evaluation
    assert selection.find_best_metric(flags, model, num_classes=0).name == expected
    for name in ('mape', 'unknown'):
      with pytest.raises(UserError, match='--best_metric={}: choose from'.format(name)):
        selection.find_best_metric(Settings(best_metric=name).evaluation, model, num_classes=0)

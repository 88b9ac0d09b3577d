"""Trainings by settings, without the command line and the reports."""

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import repairing
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.system.signals import SignalState
from estimator_train.training import preparation, trainer
from estimator_train.training.evaluation import EvaluationLoop
from estimator_train.training.run import open_run


def train(folder, write_reports=None, end_step=None, **values):
  """Trains, and returns the run and the outcome.

  Args:
    folder: the model_dir.
    write_reports: as of EvaluationLoop; None: the run is not evaluated.
    end_step: where to stop, as a signal would; the schedule is that of the complete run.
    **values: of Settings; by default, a small model is trained.
  """
  with SignalState() as signals:
    run = open_run(Settings(**{'mode': 'train', 'model': 'own_models:two_layers',
                               'model_dir': str(folder), **values}), RunDir(str(folder)))
    if end_step is not None:
      run = run._replace(end_step=end_step)
    model = _prepare(run)
    loop = write_reports and EvaluationLoop(run, model, write_reports, lambda: False)
    return run, trainer.train(run, model, signals, loop)


def prepare(settings):
  """Returns a run and its model."""
  run = open_run(settings, RunDir(settings.run.required_model_dir))
  return run, _prepare(run)


def _prepare(run):
  """Does what `--mode=train` does before its first step."""
  built = preparation.build_model(run)
  if run.settings.run.trains:
    repairing.repair_model_dir(run.run_dir.path, run.start.checkpoint)
  model = preparation.convert_model(run, built)
  if run.settings.run.trains:
    preparation.write_run_files(run)
  return model


def variables(folder, step=None):
  """Returns the variables of the checkpoint of a step, or of the latest one, by name."""
  path = (tf.train.latest_checkpoint(str(folder)) if step is None else
          '{}/model.ckpt-{}'.format(folder, step))
  reader = tf.train.load_checkpoint(path)
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def variables_by_step(folder):
  """Returns the variables of the checkpoints of all steps, from step 0 on."""
  last_step = int(tf.train.latest_checkpoint(str(folder)).rpartition('-')[2])
  return [variables(folder, step) for step in range(last_step + 1)]


def weights(folder, step=None):
  """Returns the variables of a checkpoint without those of the optimizer and the global step."""
  return {name: value for name, value in variables(folder, step).items()
          if np.ndim(value) and not name.startswith('training')}


def assert_same(found, expected, tolerance=1e-5):
  """Compares each variable, relative to its largest value."""
  assert set(found) == set(expected)
  for name, value in expected.items():
    difference = np.abs(found[name] - value).max() if np.size(value) else 0.
    assert difference <= tolerance * max(np.abs(value).max(), 1e-3), name


def events(folder):
  """Returns all events of a folder, in the order of its files."""
  paths = sorted(folder.glob('events.*'), key=lambda path: path.stat().st_mtime_ns)
  return [event for path in paths for event in tf.train.summary_iterator(str(path))]


def all_scalars(folder):
  """Returns the values of all scalars by step and tag."""
  return {(event.step, value.tag): value.simple_value for event in events(folder)
          for value in event.summary.value if value.HasField('simple_value')}


def scalars(folder, tag):
  """Returns the values of a scalar by step."""
  return {step: value for (step, name), value in all_scalars(folder).items() if name == tag}


def assert_same_weights(folder, other, tolerance=1e-5):
  """Compares the latest checkpoints of two folders."""
  assert_same(variables(folder), variables(other), tolerance)

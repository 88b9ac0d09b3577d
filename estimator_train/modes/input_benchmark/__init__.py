"""`--mode=input_benchmark`: measures the input and the model separately to find the bottleneck."""

import logging
import tempfile
from typing import Any, Dict

import attr

from estimator_train.data.data import resolve_cache
from estimator_train.data.source import translate_errors
from estimator_train.distribution import threads
from estimator_train.errors import UserError
from estimator_train.models import by_name as models
from estimator_train.modes.input_benchmark import rates, report
from estimator_train.reports import page
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings
from estimator_train.system import memory
from estimator_train.training.model import prepare
from estimator_train.training.run import open_run

_LOG = logging.getLogger('estimator_train')


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the rates of the input and of the model, a verdict and advice."""
  if settings.input.cache_features:
    raise UserError('--mode=input_benchmark measures how images are read, but training with '
                    '--cache_features reads no images', '--cache_features', 'omit it')
  if settings.run.model_dir:
    RunDir(settings.run.model_dir).make()
  # The model is trained in a temporary folder, because the user's model_dir may have checkpoints.
  with tempfile.TemporaryDirectory(prefix='input_benchmark-') as folder:
    run = open_run(_make_training_settings(settings, folder))
    prepared = prepare(run)
    run.data.dataset.require_images('--mode=input_benchmark')
    free_bytes = memory.available_bytes()
    _LOG.info('measuring the input')
    assert run.data.train is not None
    with translate_errors(run.data.train):
      measurement = rates.measure_input(run, prepared.one_hot)
    _LOG.info('measuring the model')
    model_segments = rates.measure_model(run, prepared, measurement)
  environment = report.Environment(
      threads.available_cores(), free_bytes,
      all(name.startswith('/cpu') for name in run.engine.devices.names),
      models.has_imagenet_weights(settings.model.model))
  input_settings = attr.evolve(settings.input, cache=resolve_cache(
      run.data.train, settings.input))
  summary = report.summarize(input_settings, measurement, model_segments, environment)
  # `run.conditions` are the settings and devices that affect the rates, such as the batch size.
  result = report.write_report(settings.run, input_settings, run.conditions, summary,
                               environment.cores)
  page.write_page_of_finished_run(settings.run.model_dir, settings.reporting)
  return result


def _make_training_settings(settings: Settings, folder: str) -> Settings:
  """Returns the settings for a training run in `folder`.

  A step takes as long as with the settings of the user.
  """
  return settings.evolve(
      mode='train', model_dir=folder, train_steps=2 ** 31 - 1, train_epochs=None,
      weights='none',
      # measure_model trains on one synthetic batch with random class indices. A tiny learning
      # rate keeps the loss finite.
      learning_rate=1e-9, lr_schedule='constant', lr_boundaries_epochs=(), lr_values=(),
      lr_warmup_epochs=0.)

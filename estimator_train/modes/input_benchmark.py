"""`--mode=input_benchmark`: measures the input and the model separately to find the bottleneck."""

import logging
import tempfile
from typing import Any, Dict

import attr

from estimator_train.benchmarking import input_rate, model_rate
from estimator_train.benchmarking.input_rate import InputMeasurement
from estimator_train.datasets.description import DataSet
from estimator_train.distribution import threads
from estimator_train.errors import UserError
from estimator_train.inputs import factory
from estimator_train.inputs.file_errors import translate_errors
from estimator_train.models import registry as models
from estimator_train.process import memory
from estimator_train.reports import input_benchmark, page
from estimator_train.reports.input_benchmark import BenchmarkEnvironment, ReportedInputMeasurement
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups
from estimator_train.training.model import prepare
from estimator_train.training.run import open_run

_LOG = logging.getLogger('estimator_train')


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the rates of the input and of the model, a verdict and advice."""
  if settings.cache_features:
    raise UserError('--mode=input_benchmark measures how images are read, but training with '
                    '--cache_features reads no images', '--cache_features', 'omit it')
  if settings.model_dir:
    RunDir(settings.model_dir).make()
  # The model is trained in a temporary folder, because the user's model_dir may have checkpoints.
  with tempfile.TemporaryDirectory(prefix='input_benchmark-') as folder:
    run = open_run(_make_training_settings(settings, folder))
    prepared = prepare(run)
    run.data.dataset.require_images('--mode=input_benchmark')
    free_bytes = memory.available_bytes()
    _LOG.info('measuring the input')
    dataset = run.data.dataset
    with translate_errors(factory.make_source(dataset, dataset.train)):
      measurement = input_rate.measure(dataset, run.settings, prepared.one_hot,
                                       run.data.sizes.train)
    _LOG.info('measuring the model')
    # Each item is (number of examples, seconds) of one segment of consecutive timed steps.
    model_segments = model_rate.measure(run, prepared, measurement.image_shape,
                                        measurement.pixels_dtype)
  # `run.conditions` are the settings and devices that affect the rates, such as the batch size.
  result = input_benchmark.write_input_benchmark_report(
      settings[groups.Run], attr.evolve(settings[groups.Input], cache=factory.resolve_cache(
          dataset, settings[groups.Input])), run.conditions,
      _to_reported_measurement(dataset, measurement), model_segments, BenchmarkEnvironment(
          threads.available_cores(), free_bytes,
          all(name.startswith('/cpu') for name in run.engine.devices.names),
          models.has_imagenet_weights(settings.model)))
  page.write_page_of_finished_run(settings.model_dir, settings[groups.Reporting])
  return result


def _make_training_settings(settings: Settings, folder: str) -> Settings:
  """Returns the settings for a training run in `folder`.

  A step takes as long as with the settings of the user.
  """
  return settings.evolve(
      mode='train', model_dir=folder, train_steps=2 ** 31 - 1, train_epochs=None,
      weights='none',
      # model_rate.measure trains on one synthetic batch with random class indices. A tiny learning
      # rate keeps the loss finite.
      learning_rate=1e-9, lr_schedule='constant', lr_boundaries_epochs=(), lr_values=(),
      lr_warmup_epochs=0.)


def _to_reported_measurement(dataset: DataSet,
                             measurement: InputMeasurement) -> ReportedInputMeasurement:
  """Converts the measurement to the values from which the report is computed."""
  count = measurement.num_examples
  height, width, channels = measurement.image_shape
  cold_is_from_storage = None
  if measurement.bytes_from_storage is not None and measurement.bytes_per_example is not None:
    # If most of the files had been in the page cache, fewer bytes would have come from storage.
    cold_is_from_storage = measurement.bytes_from_storage >= measurement.min_bytes_if_cold / 2
  return ReportedInputMeasurement(
      format_name=factory.make_source(dataset, dataset.train).format_name, num_examples=count,
      prepare_secs=measurement.prepare_secs, cold_passes=measurement.cold_passes,
      warm_passes=measurement.warm_passes, stage_passes=measurement.stage_passes,
      bytes_per_example=measurement.bytes_per_example, cold_is_from_storage=cold_is_from_storage,
      cache_bytes=None if count is None else count * height * width * channels)

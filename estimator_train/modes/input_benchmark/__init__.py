"""`--mode=input_benchmark`: measures the input and the model separately to find the bottleneck."""

import logging
import os
import statistics
import tempfile
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence

import attr

from estimator_train import models
from estimator_train.data.run_data import resolve_cache
from estimator_train.data.source import translate_errors
from estimator_train.modes.input_benchmark import rates
from estimator_train.modes.input_benchmark.rates import ExamplesAndSecs, InputMeasurement
from estimator_train.reports import page
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.settings.flags import InputFlags
from estimator_train.system import machine, storage
from estimator_train.training.model import prepare
from estimator_train.training.run import open_run

_LOG = logging.getLogger('estimator_train')
INPUT_BENCHMARK_FILE = 'input_benchmark.json'
INPUT_BOUND, COMPUTE_BOUND = 'input-bound', 'compute-bound'
# Even compute-bound training gets advice on a faster input if input and model share cores and the
# input takes at least this fraction of the training time.
_MIN_INPUT_SHARE = 0.1


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the rates of the input and of the model, a verdict and advice."""
  if settings.run.model_dir:
    RunDir(settings.run.model_dir).make()
  # The model is trained in a temporary folder, because the user's model_dir may have checkpoints.
  with tempfile.TemporaryDirectory(prefix='input_benchmark-') as folder:
    run = open_run(_make_training_settings(settings, folder))
    prepared = prepare(run)
    run.data.dataset.require_images('--mode=input_benchmark')
    free_bytes = machine.available_bytes()
    _LOG.info('measuring the input')
    assert run.data.train is not None
    with translate_errors(run.data.train):
      measurement = rates.measure_input(run, prepared.one_hot)
    _LOG.info('measuring the model')
    model_segments = rates.measure_model(run, prepared, measurement)
  cores = machine.available_cores()
  environment = Environment(
      cores, free_bytes,
      all(name.startswith('/cpu') for name in run.engine.devices.names),
      models.has_imagenet_weights(settings.model.model))
  flags = attr.evolve(settings.input, cache=resolve_cache(run.data.train, settings.input))
  # `run.conditions` are the settings and devices that affect the rates, such as the batch size.
  result: Dict[str, Any] = {
      'mode': settings.run.mode, 'model_dir': settings.run.model_dir,
      **summarize(flags, measurement, model_segments, environment), **run.conditions,
      'cache': flags.cache, 'cores': cores,
      'num_parallel_calls': flags.num_parallel_calls or cores,
      'shuffle_buffer': flags.shuffle_buffer, 'prefetch': flags.prefetch}
  for line in _format_table(result):
    print(line)
  if settings.run.model_dir:
    storage.write_json(os.path.join(settings.run.model_dir, INPUT_BENCHMARK_FILE), result)
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


class Environment(NamedTuple):
  """The properties of the machine and the model that the advice depends on.

  Attributes:
    cores: number of cores that this process may use.
    free_bytes: free memory in bytes, before the benchmark cached anything.
    model_shares_cores: whether the model runs on the same cores as the input pipeline.
    is_pretrained: whether the model is a pretrained network, whose first layers can be frozen.
  """
  cores: int
  free_bytes: int
  model_shares_cores: bool
  is_pretrained: bool


def summarize(flags: InputFlags, measurement: InputMeasurement,
              model_segments: Sequence[ExamplesAndSecs],
              environment: Environment) -> Dict[str, Any]:
  """Computes the rates, the verdict and the advice, by their keys in `input_benchmark.json`.

  A rate is the median of examples ÷ wall time over several passes. The cold rate is the rate
  of a whole first epoch, including the time to fill a cache.

  Args:
    flags: as in `write_report`.
    measurement: measurements of the input pipeline.
    model_segments: measurements of training on a synthetic batch, one per segment of steps.
    environment: properties of the machine and the model.
  """
  spread = {'cold': _summarize_rates(_first_epoch_rates(measurement)),
            'warm': _summarize_rates(_rates(measurement.warm_passes)),
            'model': _summarize_rates(_rates(model_segments))}
  cold, warm, model = (spread[name]['median'] for name in ('cold', 'warm', 'model'))
  file_bytes = measurement.bytes_per_example
  result: Dict[str, Any] = {
      'cold_images_per_sec': cold, 'warm_images_per_sec': warm, 'model_images_per_sec': model,
      'verdict': INPUT_BOUND if model > warm else COMPUTE_BOUND,
      'verdict_ratio': model / warm,
      'expected_images_per_sec': {'overlap': min(warm, model),
                                  'shared_cores': 1 / (1 / warm + 1 / model)},
      'model_shares_cores': environment.model_shares_cores,
      'cold_mb_per_sec': None if file_bytes is None else cold * file_bytes / 1e6,
      'warm_mb_per_sec': None if file_bytes is None else warm * file_bytes / 1e6,
      'cold_is_from_storage': measurement.cold_is_from_storage,
      'prepare_secs': measurement.prepare_secs,
      'stages': _summarize_stages(measurement.stage_passes),
      'spread': spread,
  }
  result['advice'] = _make_advice(flags, result, measurement, environment)
  return result


def _rates(passes: Sequence[ExamplesAndSecs]) -> List[float]:
  return [examples / secs for examples, secs in passes]


def _first_epoch_rates(measurement: InputMeasurement) -> List[float]:
  """Extrapolates each cold pass to a whole first epoch, and returns the rates of these epochs.

  The time of a first epoch includes `prepare_secs`. Infinite data has no epochs, so the function
  returns the rates of the passes instead.
  """
  num_examples = measurement.num_examples
  return [rate if num_examples is None
          else num_examples / (measurement.prepare_secs + num_examples / rate)
          for rate in _rates(measurement.cold_passes)]


def _summarize_rates(rates: Sequence[float]) -> Dict[str, Any]:
  return {'median': statistics.median(rates), 'min': min(rates), 'max': max(rates),
          'passes': len(rates)}


def _summarize_stages(
    stage_passes: Mapping[str, Sequence[ExamplesAndSecs]]) -> Dict[str, Dict[str, float]]:
  """Returns the figures of each stage.

  The rates of a stage are the rates of the pipeline that ends with the stage. `share` is the time
  that the stage adds, as a fraction of the time of the whole pipeline.
  """
  figures, secs_per_image = {}, 0.
  for name, passes in stage_passes.items():
    figures[name] = _summarize_rates(_rates(passes))
    figures[name]['images_per_sec'] = figures[name].pop('median')
    # Because of noise, the pipeline may seem faster with this stage than without it. The stage then
    # adds no time.
    previous_secs = secs_per_image
    secs_per_image = max(previous_secs, 1 / figures[name]['images_per_sec'])
    figures[name]['share'] = secs_per_image - previous_secs
  for stage in figures.values():
    stage['share'] /= secs_per_image
  return figures


def _make_advice(flags: InputFlags, result: Dict[str, Any], measurement: InputMeasurement,
                 environment: Environment) -> str:
  """Returns the verdict with its reason, and the flags or hardware that would speed up training."""
  warm, model = result['warm_images_per_sec'], result['model_images_per_sec']
  is_input_bound = result['verdict'] == INPUT_BOUND
  # If input and model run on the same cores, the input takes this fraction of the training time.
  input_share = model / (warm + model)
  if is_input_bound:
    clauses = ['input-bound: the model can process {} images/sec, {:.2f} times the rate of the '
               'input ({})'.format(_format_rate(model), model / warm, _format_rate(warm))]
  else:
    clauses = ['compute-bound: the input delivers {} images/sec, {:.2f} times the rate of the '
               'model ({})'.format(_format_rate(warm), warm / model, _format_rate(model))]
  if environment.model_shares_cores:
    expected = result['expected_images_per_sec']
    clauses.append('input and model run on the same {} core(s), so training reaches about {} '
                   'images/sec and the input takes {:.0%} of the time (on separate cores: {} '
                   'images/sec)'.format(environment.cores, _format_rate(expected['shared_cores']),
                                        input_share, _format_rate(expected['overlap'])))
  input_advice = _make_input_advice(flags, measurement, environment)
  if is_input_bound:
    return '; '.join(clauses + [input_advice])
  helps = environment.model_shares_cores and input_share >= _MIN_INPUT_SHARE
  clauses.append('to reduce the time of the input: ' + input_advice if helps
                 else 'a faster input would not help')
  clauses.append('to speed up the model, try a larger --batch_size or {}{}'.format(
      'a GPU' if environment.model_shares_cores else 'more GPUs',
      ' or --cache_features if the first layers are frozen' if environment.is_pretrained else ''))
  return '; '.join(clauses)


def _make_input_advice(flags: InputFlags, measurement: InputMeasurement,
                       environment: Environment) -> str:
  """Returns the flags that make the input faster or, if there are none, the reason."""
  if measurement.format_name == 'synthetic':
    return 'synthetic images cost almost nothing, and no flag makes them faster'
  if flags.cache != 'none' or measurement.format_name == 'arrays':
    return 'the input is already cached, and no flag makes it faster'
  advice = []
  decodes_images = measurement.format_name in ('image_files', 'image_records')
  if decodes_images and 0 < flags.num_parallel_calls < environment.cores:
    advice.append('--num_parallel_calls=0 (one per core, {}, instead of {})'.format(
        environment.cores, flags.num_parallel_calls))
  requirement = 'needs {:.2g} GB, {:.2g} GB of memory are free'.format(
      measurement.cache_bytes / 1e9, environment.free_bytes / 1e9)
  if measurement.cache_bytes <= environment.free_bytes:
    advice.append('--cache=memory ({})'.format(requirement))
  elif decodes_images:
    advice.append('--cache=FOLDER ({})'.format(requirement))
  if not advice:
    return 'no flag helps: the cache does not fit into memory ({})'.format(requirement)
  return 'set ' + ' and '.join(advice)


def _format_table(result: Dict[str, Any]) -> Iterator[str]:
  yield '{} on {}: batch size {}, --cache={}, {} core(s), model on {}'.format(
      result['model'], result['dataset'], result['global_batch_size'], result['cache'],
      result['cores'], ', '.join(result['devices']))
  yield '{:10}  {:>14}  {:>23}  {:>8}  {:>13}'.format(
      '', 'images/sec', 'slowest to fastest', 'MB/sec', 'added time')
  for name, stage in result['stages'].items():
    yield _format_row('  ' + name, stage['images_per_sec'], stage, '',
                      '{:.0%}'.format(stage['share']))
  for name in ('cold', 'warm', 'model'):
    mb_per_sec = result.get(name + '_mb_per_sec')
    yield _format_row(name, result[name + '_images_per_sec'], result['spread'][name],
                      '' if mb_per_sec is None else '{:,.1f}'.format(mb_per_sec), '')
  if result['cold_is_from_storage'] is False:
    yield 'the cold rate does not measure storage: the files stayed in memory, because they '\
          'are in use, are not yet written to disk, or are in a file system without a disk'
  yield result['advice']


def _format_row(name: str, rate: float, spread: Dict[str, Any], mb_per_sec: str,
                added_time: str) -> str:
  return '{:10}  {:>14}  {:>23}  {:>8}  {:>13}'.format(
      name, _format_rate(rate),
      '{} to {}'.format(_format_rate(spread['min']), _format_rate(spread['max'])),
      mb_per_sec, added_time).rstrip()


def _format_rate(rate: float) -> str:
  return '{:,.1f}'.format(rate) if rate < 100 else '{:,.0f}'.format(rate)

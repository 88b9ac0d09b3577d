"""`--mode=input_benchmark`: measures the input and the model separately to find the bottleneck."""

import statistics
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import attr
import numpy as np

from estimator_train.data.opening import resolve_cache
from estimator_train.data.source import translate_errors
from estimator_train.model import networks
from estimator_train.modes.input_benchmark.measurement import (
  ExamplesAndSecs,
  InputMeasurement,
  measure_input,
  measure_model,
)
from estimator_train.reports import page, report_files, verdicts
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings, to_training_arguments
from estimator_train.settings.flags import InputFlags
from estimator_train.settings.proposals import make_command
from estimator_train.system import machine
from estimator_train.system.formatting import (
  format_bytes,
  format_number,
  format_percent,
)
from estimator_train.system.progress import show_phase
from estimator_train.system.summary import log_summary
from estimator_train.training.preparation import build_model, convert_model
from estimator_train.training.run import open_temporary_run

# If input and model share cores, and the input takes at least this fraction of the training time,
# even compute-bound training gets advice on a faster input.
_MIN_INPUT_SHARE = 0.1


def run(settings: Settings, run_dir: Optional[RunDir]) -> Dict[str, Any]:
  """Returns the result: the rates of the input and of the model, a verdict and advice."""
  if run_dir is not None:
    run_dir.make()
  # The class indices of the synthetic batch are random, so a tiny learning rate keeps the loss
  # finite. It does not change the time of a step.
  with open_temporary_run(settings, 1e-9, 2 ** 31 - 1, weights='none') as run:
    prepared = convert_model(run, build_model(run))
    run.data.spec.require_images('--mode=input_benchmark')
    free_bytes = machine.available_bytes()
    assert run.data.train is not None
    with show_phase('measuring the input'), translate_errors(run.data.train):
      measurement = measure_input(run, prepared.one_hot)
    with show_phase('measuring the model'):
      model_segments = measure_model(run, prepared, measurement)
  flags = attr.evolve(settings.input, cache=resolve_cache(run.data.train, settings.input))
  rates = compute_rates(measurement, model_segments)
  cores, on_cpu = machine.available_cores(), run.engine.devices.names[0].startswith('/cpu')
  # `run.conditions` are the settings and devices that affect the rates, such as the batch size.
  result: Dict[str, Any] = {
      'mode': settings.run.mode, 'model_dir': settings.run.model_dir, **rates,
      'advice': make_advice(rates, make_input_advice(flags, measurement, cores, free_bytes),
                            on_cpu, networks.has_imagenet_weights(settings.model.model)),
      **run.conditions, 'cache': flags.cache, 'cores': cores, 'model_shares_cores': on_cpu,
      'num_parallel_calls': flags.num_parallel_calls or cores,
      'shuffle_buffer': flags.shuffle_buffer, 'prefetch': flags.prefetch}
  for line in _format_table(result):
    print(line)
  rows: List[Tuple[str, Optional[str]]] = []
  if run_dir is not None:
    report_files.write(run_dir.path, 'input_benchmark', result)
    rows = [('report', page.write_page_of_finished_run(run_dir.path, settings.reporting)),
            ('result', report_files.path_to(run_dir.path, 'input_benchmark'))]
  log_summary('measured the input and the model: ' + result['verdict'], rows,
              make_command(*to_training_arguments(settings)))
  return result


def compute_rates(measurement: InputMeasurement,
                  model_segments: Sequence[ExamplesAndSecs]) -> Dict[str, Any]:
  """Computes the rates and the verdict, by their keys in `input_benchmark.json`.

  The cold rate is the rate of the first epoch of a training run, from making the input to the last
  batch. For infinite data, it is the rate of the cold pass. Each other rate is the median of
  examples ÷ wall time over several passes. The rates of a stage are those of a pipeline that ends
  with this stage. The `share` of a stage is the time that it adds, as a fraction of the time of the
  whole pipeline.
  """
  (cold_rate,) = _compute_pass_rates([measurement.cold_pass])
  num_examples = measurement.num_examples
  if num_examples is not None:
    cold_rate = num_examples / (measurement.prepare_secs + num_examples / cold_rate)
  spread = {name: {'median': statistics.median(rates), 'min': min(rates), 'max': max(rates),
                   'passes': len(rates)}
            for name, rates in (('cold', [cold_rate]),
                                ('warm', _compute_pass_rates(measurement.warm_passes)),
                                ('model', _compute_pass_rates(model_segments)))}
  stages, secs = {}, 0.
  for name, passes in measurement.stage_passes.items():
    rates, previous_secs = _compute_pass_rates(passes), secs
    rate = statistics.median(rates)
    # Because of noise, the pipeline may seem faster with this stage than without it.
    secs = max(previous_secs, 1 / rate)
    stages[name] = {'images_per_sec': rate, 'min': min(rates), 'max': max(rates),
                    'share': secs - previous_secs}
  for stage in stages.values():
    stage['share'] /= secs
  warm_rate, model_rate = (spread[name]['median'] for name in ('warm', 'model'))
  return {**{name + '_images_per_sec': figures['median'] for name, figures in spread.items()},
          'verdict': verdicts.INPUT_BOUND if model_rate > warm_rate else verdicts.COMPUTE_BOUND,
          'verdict_ratio': model_rate / warm_rate,
          'prepare_secs': measurement.prepare_secs, 'stages': stages, 'spread': spread}


def _compute_pass_rates(passes: Sequence[ExamplesAndSecs]) -> List[float]:
  return [examples / secs for examples, secs in passes]


def make_advice(rates: Dict[str, Any], input_advice: str, on_cpu: bool,
                is_pretrained: bool) -> str:
  """Returns the verdict with its reason, and the flags or hardware that would speed up training.

  Args:
    on_cpu: whether the model runs on the same cores as the input pipeline.
    is_pretrained: whether the model is a pretrained network, whose first layers can be frozen.
  """
  input_rate, model_rate = rates['warm_images_per_sec'], rates['model_images_per_sec']
  verdict = rates['verdict']
  higher, lower = max(input_rate, model_rate), min(input_rate, model_rate)
  clauses = ['{}: {}'.format(verdict, verdicts.TEXTS[verdict].benchmark.format(
      format_number(higher), format_number(higher / lower),
      format_number(lower)))]
  # If input and model run on the same cores, the input takes this fraction of the training time.
  input_share = model_rate / (input_rate + model_rate)
  if on_cpu:
    clauses.append('input and model run on the same cores, so training reaches about {} images/sec '
                   'and the input takes {} of the time'.format(
                       format_number(input_rate * input_share), format_percent(input_share)))
  if verdict == verdicts.INPUT_BOUND:
    return '; '.join([*clauses, input_advice])
  clauses.append('to reduce the time of the input: ' + input_advice
                 if on_cpu and input_share >= _MIN_INPUT_SHARE
                 else 'a faster input would not help')
  clauses.append('to speed up the model, try a larger --batch_size or {}{}'.format(
      'a GPU' if on_cpu else 'more GPUs',
      ' or --cache_features if the first layers are frozen' if is_pretrained else ''))
  return '; '.join(clauses)


def make_input_advice(flags: InputFlags, measurement: InputMeasurement, cores: int,
                      free_bytes: int) -> str:
  """Returns the flags that make the input faster or, if no flag does, the reason.

  Args:
    flags: the flags of the input, with the cache that is used.
    free_bytes: the free memory before the benchmark cached anything.
  """
  if measurement.format_name == 'synthetic':
    return 'synthetic images cost almost nothing, and no flag makes them faster'
  if flags.cache != 'none' or measurement.format_name == 'arrays':
    return 'the input is already cached, and no flag makes it faster'
  assert measurement.num_examples is not None
  cache_bytes = measurement.num_examples * int(np.prod(measurement.image_shape))
  advice = []
  decodes_images = measurement.format_name in ('image_files', 'image_records')
  if decodes_images and 0 < flags.num_parallel_calls < cores:
    advice.append('--num_parallel_calls=0 (one per core, {}, instead of {})'.format(
        cores, flags.num_parallel_calls))
  requirement = 'needs {}, {} of memory are free'.format(
      format_bytes(cache_bytes), format_bytes(free_bytes))
  if cache_bytes <= free_bytes or decodes_images:
    advice.append('--cache={} ({})'.format(
        'memory' if cache_bytes <= free_bytes else 'FOLDER', requirement))
  if not advice:
    return 'no flag helps: the cache does not fit into memory ({})'.format(requirement)
  return 'set ' + ' and '.join(advice)


def _format_table(result: Dict[str, Any]) -> Iterator[str]:
  format_row = '{:10}  {:>14}  {:>23}  {:>13}'.format
  yield '{} on {}: batch size {}, --cache={}, {} core(s), model on {}'.format(
      result['model'], result['dataset'], result['global_batch_size'], result['cache'],
      result['cores'], ', '.join(result['devices']))
  yield format_row('', 'images/sec', 'slowest to fastest', 'added time')
  rows = [('  ' + name, stage['images_per_sec'], stage, format_percent(stage['share']))
          for name, stage in result['stages'].items()]
  rows += [(name, result[name + '_images_per_sec'], spread, '')
           for name, spread in result['spread'].items()]
  for name, rate, spread, added_time in rows:
    yield format_row(name, format_number(rate), '{} to {}'.format(
        format_number(spread['min']), format_number(spread['max'])), added_time).rstrip()
  yield result['advice']

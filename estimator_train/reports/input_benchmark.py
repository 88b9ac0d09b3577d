"""The report of `--mode=input_benchmark`: rates of the input and the model, and a verdict."""

import os
import statistics
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from estimator_train.files import atomic
from estimator_train.settings import groups

FILE = 'input_benchmark.json'
INPUT_BOUND, COMPUTE_BOUND = 'input-bound', 'compute-bound'
# The fraction of the training time from which a faster input is recommended.
_SIGNIFICANT_SHARE = 0.1

ExamplesAndSecs = Tuple[int, float]


class InputFigures(NamedTuple):
  """The measured figures of an input pipeline.

  Attributes:
    kind: `image_files`, `idx_files`, `arrays` or `synthetic`.
    num_examples: number of examples per epoch; None for infinite data.
    prepare_secs: seconds before the first example, spent on filling the cache.
    cold: passes that started with no file in the page cache.
    warm: passes on examples that had been read before.
    stages: passes of each stage combined with all stages before it, in order.
    bytes_per_example: size of the files on disk per example; None if there are no files.
    was_cold: whether the cold passes read from storage; None if that is unknown.
    cache_bytes: size of a cache of all examples; None if the number of examples is infinite.
  """
  kind: str
  num_examples: Optional[int]
  prepare_secs: float
  cold: Sequence[ExamplesAndSecs]
  warm: Sequence[ExamplesAndSecs]
  stages: Mapping[str, Sequence[ExamplesAndSecs]]
  bytes_per_example: Optional[float]
  was_cold: Optional[bool]
  cache_bytes: Optional[int]


class Environment(NamedTuple):
  """The properties of the machine and the model that the advice depends on.

  Attributes:
    cores: number of cores that this process may use.
    free_bytes: free memory before anything was cached.
    model_shares_cores: whether the model runs on the same cores as the input pipeline.
    is_pretrained: whether the model is a pretrained network, whose first layers can be frozen.
  """
  cores: int
  free_bytes: int
  model_shares_cores: bool
  is_pretrained: bool


def write_input_benchmark_report(
    run: groups.Run, settings: groups.Input, conditions: Dict[str, Any], measured: InputFigures,
    model: Sequence[ExamplesAndSecs], environment: Environment) -> Dict[str, Any]:
  """Prints a table, writes `input_benchmark.json` if there is a `model_dir`, and returns it.

  Args:
    run, settings: flag groups of the run.
    conditions: conditions that the figures depend on, by their keys in the file.
    measured: figures of the input pipeline.
    model: (examples, seconds) of training on a synthetic batch, for several segments of steps.
    environment: properties of the machine and the model.
  """
  result: Dict[str, Any] = {'mode': run.mode, 'model_dir': run.model_dir}
  result.update(summarize(settings, measured, model, environment))
  result.update(conditions, cache=settings.cache, cores=environment.cores,
                num_parallel_calls=settings.num_parallel_calls or environment.cores,
                shuffle_buffer=settings.shuffle_buffer, prefetch=settings.prefetch)
  for line in _format_table(result):
    print(line)
  if run.model_dir:
    atomic.write_json(os.path.join(run.model_dir, FILE), result)
  return result


def summarize(settings: groups.Input, measured: InputFigures, model: Sequence[ExamplesAndSecs],
              environment: Environment) -> Dict[str, Any]:
  """Computes the rates, the verdict and the advice, by their keys in `input_benchmark.json`.

  A rate is the median over several passes of examples ÷ wall time. The cold rate is that of the
  whole first epoch, including the time to fill a cache.
  """
  spread = {'cold': _spread(_first_epoch_rates(measured)), 'warm': _spread(_rates(measured.warm)),
            'model': _spread(_rates(model))}
  cold, warm, trained = (spread[name]['median'] for name in ('cold', 'warm', 'model'))
  result: Dict[str, Any] = {name + '_images_per_sec': figures['median']
                            for name, figures in spread.items()}
  size = measured.bytes_per_example
  result.update({
      'verdict': INPUT_BOUND if trained > warm else COMPUTE_BOUND,
      'verdict_ratio': trained / warm,
      'expected_images_per_sec': {'overlap': min(warm, trained),
                                  'shared_cores': 1 / (1 / warm + 1 / trained)},
      'model_shares_cores': environment.model_shares_cores,
      'cold_mb_per_sec': None if size is None else cold * size / 1e6,
      'warm_mb_per_sec': None if size is None else warm * size / 1e6,
      'cold_is_from_storage': measured.was_cold,
      'prepare_secs': measured.prepare_secs,
      'stages': _stage_rates(measured.stages),
      'spread': spread,
  })
  result['advice'] = _advice(settings, result, measured, environment)
  return result


def _rates(passes: Sequence[ExamplesAndSecs]) -> List[float]:
  return [examples / secs for examples, secs in passes]


def _first_epoch_rates(measured: InputFigures) -> List[float]:
  """Returns the rate of a first epoch for each cold pass, including the time to prepare."""
  count = measured.num_examples
  return [rate if count is None else count / (measured.prepare_secs + count / rate)
          for rate in _rates(measured.cold)]


def _spread(rates: Sequence[float]) -> Dict[str, Any]:
  return {'median': statistics.median(rates), 'min': min(rates), 'max': max(rates),
          'passes': len(rates)}


def _stage_rates(
    stages: Mapping[str, Sequence[ExamplesAndSecs]]) -> Dict[str, Dict[str, float]]:
  """Returns the rate up to each stage, its spread, and the fraction of the time it adds."""
  figures, secs = {}, 0.
  for name, passes in stages.items():
    figures[name] = _spread(_rates(passes))
    figures[name]['images_per_sec'] = figures[name].pop('median')
    # Measurement noise must not give a stage a negative time.
    before, secs = secs, max(secs, 1 / figures[name]['images_per_sec'])
    figures[name]['added_secs'] = secs - before
  for stage in figures.values():
    stage['share'] = stage.pop('added_secs') / secs
  return figures


def _advice(settings: groups.Input, result: Dict[str, Any], measured: InputFigures,
            environment: Environment) -> str:
  warm, model = result['warm_images_per_sec'], result['model_images_per_sec']
  if result['verdict'] == INPUT_BOUND:
    text = 'input-bound: the model can process {} images/sec, {:.2f} times the rate of the input ' \
           '({})'.format(_format_rate(model), model / warm, _format_rate(warm))
  else:
    text = 'compute-bound: the input delivers {} images/sec, {:.2f} times the rate of the model ' \
           '({})'.format(_format_rate(warm), warm / model, _format_rate(model))
  parts = [text]
  share = model / (warm + model)  # The input's share of the time, if both use the same cores.
  if environment.model_shares_cores:
    expected = result['expected_images_per_sec']
    parts.append('both run on the same {} core(s), so training reaches about {} images/sec and the '
                 'input takes {:.0%} of the time (on separate cores: {} images/sec)'.format(
                     environment.cores, _format_rate(expected['shared_cores']), share,
                     _format_rate(expected['overlap'])))
  input_advice = _input_advice(settings, measured, environment)
  if result['verdict'] == INPUT_BOUND:
    parts.append(input_advice)
  else:
    if environment.model_shares_cores and share >= _SIGNIFICANT_SHARE:
      parts.append('to reduce the time of the input: ' + input_advice)
    else:
      parts.append('a faster input would not help')
    parts.append(_model_advice(environment))
  return '; '.join(parts)


def _input_advice(settings: groups.Input, measured: InputFigures, environment: Environment) -> str:
  if measured.kind == 'synthetic':
    return 'synthetic images cost almost nothing, and no flag makes them faster'
  if settings.cache != 'none' or measured.kind == 'arrays':
    return 'the input is already cached, and no flag makes it faster'
  flags = []
  if measured.kind == 'image_files' and 0 < settings.num_parallel_calls < environment.cores:
    flags.append('--num_parallel_calls=0 (one per core, {}, instead of {})'.format(
        environment.cores, settings.num_parallel_calls))
  assert measured.cache_bytes is not None
  need = 'needs {:.2g} GB, {:.2g} GB of memory are free'.format(
      measured.cache_bytes / 1e9, environment.free_bytes / 1e9)
  if measured.cache_bytes <= environment.free_bytes:
    flags.append('--cache=memory ({})'.format(need))
  elif measured.kind == 'image_files':
    flags.append('--cache=FOLDER ({})'.format(need))
  if not flags:
    return 'no flag helps: the cache does not fit into memory ({})'.format(need)
  return 'set ' + ' and '.join(flags)


def _model_advice(environment: Environment) -> str:
  choices = ['a larger --batch_size', 'a GPU' if environment.model_shares_cores else 'more GPUs']
  if environment.is_pretrained:
    choices.append('--cache_features if the first layers are frozen')
  return 'to speed up the model, try ' + ' or '.join(choices)


def _format_table(result: Dict[str, Any]) -> Iterator[str]:
  yield '{} on {}: batch size {}, --cache={}, {} core(s), model on {}'.format(
      result['model'], result['dataset'], result['global_batch_size'], result['cache'],
      result['cores'], ', '.join(result['devices']))
  yield '{:10}  {:>14}  {:>23}  {:>8}  {:>13}'.format(
      '', 'images/sec', 'slowest to fastest', 'MB/sec', 'added time')
  for name, stage in result['stages'].items():
    yield _format_row('  ' + name, stage['images_per_sec'], stage, None,
                      '{:.0%}'.format(stage['share']))
  for name in ('cold', 'warm', 'model'):
    yield _format_row(name, result[name + '_images_per_sec'], result['spread'][name],
                      result.get(name + '_mb_per_sec'), '')
  if result['cold_is_from_storage'] is False:
    yield 'the cold rate is not from storage: the files stayed in memory (in use, not yet written '\
          'to disk, or in a file system without a disk)'
  yield result['advice']


def _format_row(name: str, rate: float, spread: Dict[str, Any], megabytes: Optional[float],
                share: str) -> str:
  return '{:10}  {:>14}  {:>23}  {:>8}  {:>13}'.format(
      name, _format_rate(rate),
      '{} to {}'.format(_format_rate(spread['min']), _format_rate(spread['max'])),
      '' if megabytes is None else '{:,.1f}'.format(megabytes), share).rstrip()


def _format_rate(rate: float) -> str:
  return '{:,.1f}'.format(rate) if rate < 100 else '{:,.0f}'.format(rate)

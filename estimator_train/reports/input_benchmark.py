"""From the rates of the input and of the model to a verdict: which of them training waits for."""

import os
import statistics
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from estimator_train.files import atomic
from estimator_train.settings import groups

FILE = 'input_benchmark.json'
INPUT_BOUND, COMPUTE_BOUND = 'input-bound', 'compute-bound'
# A share of the time that is worth a flag.
_WORTH_IT = 0.1

# Examples, and the seconds that they took.
Pass = Tuple[int, float]


class Input(NamedTuple):
  """What was measured of the input.

  Attributes:
    kind: `image_files`, `idx_files`, `arrays` or `made_up`.
    num_examples: of an epoch; None: without end.
    prepare_secs: before the first example, to fill the cache.
    cold: passes that began with the files out of memory.
    warm: passes over what had been read before.
    stages: the same of each stage with those before it, in their order.
    bytes_per_example: of the files, as they are stored; None where there are none.
    was_cold: whether the cold passes read from storage; None where that is unknown.
    cache_bytes: what all examples take in a cache; None where there is none.
  """
  kind: str
  num_examples: Optional[int]
  prepare_secs: float
  cold: Sequence[Pass]
  warm: Sequence[Pass]
  stages: Mapping[str, Sequence[Pass]]
  bytes_per_example: Optional[float]
  was_cold: Optional[bool]
  cache_bytes: Optional[int]


class Machine(NamedTuple):
  """What the advice depends on.

  Attributes:
    cores: that this process may use.
    free_bytes: of memory, before anything was cached.
    is_shared: whether the model runs on the cores that the input runs on.
    pretrained: whether the network is one of those whose first layers can be frozen.
  """
  cores: int
  free_bytes: int
  is_shared: bool
  pretrained: bool


def write(run: groups.Run, settings: groups.Input, conditions: Dict[str, Any], measured: Input,
          model: Sequence[Pass], machine: Machine) -> Dict[str, Any]:
  """Prints a table, writes `input_benchmark.json` where there is a `model_dir`, and returns it."""
  result: Dict[str, Any] = {'mode': run.mode, 'model_dir': run.model_dir}
  result.update(summarize(settings, measured, model, machine))
  result.update(conditions, cache=settings.cache, cores=machine.cores,
                num_parallel_calls=settings.num_parallel_calls or machine.cores,
                shuffle_buffer=settings.shuffle_buffer, prefetch=settings.prefetch)
  for line in _table(result):
    print(line)
  if run.model_dir:
    atomic.write_json(os.path.join(run.model_dir, FILE), result)
  return result


def summarize(settings: groups.Input, measured: Input, model: Sequence[Pass],
              machine: Machine) -> Dict[str, Any]:
  """Works out the rates, the verdict and the advice, by their names in `input_benchmark.json`.

  A rate is the median of those of several passes, each its examples over its wall time. Of a run
  that prepares something first, a cache say, the cold rate is that of its whole first epoch.
  """
  spread = {'cold': _spread(_first_epochs(measured)), 'warm': _spread(_rates(measured.warm)),
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
      'model_shares_cores': machine.is_shared,
      'cold_mb_per_sec': None if size is None else cold * size / 1e6,
      'warm_mb_per_sec': None if size is None else warm * size / 1e6,
      'cold_is_from_storage': measured.was_cold,
      'prepare_secs': measured.prepare_secs,
      'stages': _stages(measured.stages),
      'spread': spread,
  })
  result['advice'] = _advice(settings, result, measured, machine)
  return result


def _rates(passes: Sequence[Pass]) -> List[float]:
  return [examples / secs for examples, secs in passes]


def _first_epochs(measured: Input) -> List[float]:
  """Returns the rates of whole epochs at the cold rates, each with what had to be done before."""
  count = measured.num_examples
  return [rate if count is None else count / (measured.prepare_secs + count / rate)
          for rate in _rates(measured.cold)]


def _spread(rates: Sequence[float]) -> Dict[str, Any]:
  return {'median': statistics.median(rates), 'min': min(rates), 'max': max(rates),
          'passes': len(rates)}


def _stages(passes: Mapping[str, Sequence[Pass]]) -> Dict[str, Dict[str, float]]:
  """Returns the rate up to each stage, its spread, and the share of the time that it adds."""
  figures, secs = {}, 0.
  for name, some in passes.items():
    figures[name] = _spread(_rates(some))
    figures[name]['images_per_sec'] = figures[name].pop('median')
    # No stage takes less than nothing, whatever else the machine did meanwhile.
    before, secs = secs, max(secs, 1 / figures[name]['images_per_sec'])
    figures[name]['added_secs'] = secs - before
  for stage in figures.values():
    stage['share'] = stage.pop('added_secs') / secs
  return figures


def _advice(settings: groups.Input, result: Dict[str, Any], measured: Input,
            machine: Machine) -> str:
  warm, model = result['warm_images_per_sec'], result['model_images_per_sec']
  if result['verdict'] == INPUT_BOUND:
    text = 'input-bound: the model could take {} images/sec, {:.2f} times what the input gives ' \
           '({})'.format(_number(model), model / warm, _number(warm))
  else:
    text = 'compute-bound: the input gives {} images/sec, {:.2f} times what the model takes ' \
           '({})'.format(_number(warm), warm / model, _number(model))
  parts = [text]
  share = model / (warm + model)  # Of the cores' time, where both need it.
  if machine.is_shared:
    expected = result['expected_images_per_sec']
    parts.append('as both run on the same {} core(s), training gets to about {} images/sec, and '
                 'the input takes {:.0%} of the time (with cores of its own: {} images/sec)'.format(
                     machine.cores, _number(expected['shared_cores']), share,
                     _number(expected['overlap'])))
  for_the_input = _of_the_input(settings, measured, machine)
  if result['verdict'] == INPUT_BOUND:
    parts.append(for_the_input)
  else:
    if machine.is_shared and share >= _WORTH_IT:
      parts.append('to save of that: ' + for_the_input)
    else:
      parts.append('nothing in the input helps')
    parts.append(_of_the_model(machine))
  return '; '.join(parts)


def _of_the_input(settings: groups.Input, measured: Input, machine: Machine) -> str:
  if measured.kind == 'made_up':
    return 'made-up images cost next to nothing, and no flag makes them cheaper'
  if settings.cache != 'none' or measured.kind == 'arrays':
    return 'the input is cached already, and no flag makes it faster'
  flags = []
  if measured.kind == 'image_files' and 0 < settings.num_parallel_calls < machine.cores:
    flags.append('--num_parallel_calls=0 (as many as cores, {}, instead of {})'.format(
        machine.cores, settings.num_parallel_calls))
  assert measured.cache_bytes is not None
  need = '{:.2g} GB, of memory {:.2g} GB are free'.format(
      measured.cache_bytes / 1e9, machine.free_bytes / 1e9)
  if measured.cache_bytes <= machine.free_bytes:
    flags.append('--cache=memory ({})'.format(need))
  elif measured.kind == 'image_files':
    flags.append('--cache=FOLDER ({})'.format(need))
  if not flags:
    return 'no flag helps: a cache does not fit ({})'.format(need)
  return 'give ' + ' and '.join(flags)


def _of_the_model(machine: Machine) -> str:
  choices = ['a larger --batch_size', 'a GPU' if machine.is_shared else 'more GPUs']
  if machine.pretrained:
    choices.append('--cache_features if the first layers are frozen')
  return 'for the model, try ' + ' or '.join(choices)


def _table(result: Dict[str, Any]) -> Iterator[str]:
  yield '{} on {}: batch size {}, --cache={}, {} core(s), model on {}'.format(
      result['model'], result['dataset'], result['global_batch_size'], result['cache'],
      result['cores'], ', '.join(result['devices']))
  yield '{:10}  {:>14}  {:>23}  {:>8}  {:>13}'.format(
      '', 'images/sec', 'slowest to fastest', 'MB/sec', 'adds of time')
  for name, stage in result['stages'].items():
    yield _row('  ' + name, stage['images_per_sec'], stage, None, '{:.0%}'.format(stage['share']))
  for name in ('cold', 'warm', 'model'):
    yield _row(name, result[name + '_images_per_sec'], result['spread'][name],
               result.get(name + '_mb_per_sec'), '')
  if result['cold_is_from_storage'] is False:
    yield 'cold is not: the files stayed in memory (in use, not yet on the disk, or on none)'
  yield result['advice']


def _row(name: str, rate: float, spread: Dict[str, Any], megabytes: Optional[float],
         share: str) -> str:
  return '{:10}  {:>14}  {:>23}  {:>8}  {:>13}'.format(
      name, _number(rate), '{} to {}'.format(_number(spread['min']), _number(spread['max'])),
      '' if megabytes is None else '{:,.1f}'.format(megabytes), share).rstrip()


def _number(rate: float) -> str:
  return '{:,.1f}'.format(rate) if rate < 100 else '{:,.0f}'.format(rate)

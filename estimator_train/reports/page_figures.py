"""What the page says in figures: the headlines, where the time went, and the tables of times."""

import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from estimator_train.reports import words
from estimator_train.reports.page_files import Files

_VERDICTS = {
    'input-bound': 'Training waits for its input.',
    'compute-bound': 'Training is as fast as the model computes.',
    'overhead-bound': 'Training waits for what happens between the steps.',
}
_SHARES = (('input', 'waiting for input'), ('compute', 'computing'), ('between', 'between steps'))
_FIRST_STEP_PARTS = (
    ('import', 'imports'), ('data', 'data'), ('model', 'model'), ('graph', 'graph'),
    ('session', 'session'), ('first_batch', 'first batch'), ('first_step', 'first step'))
_SPREADS = (('steady_step_secs', 'step, steady'), ('step_secs', 'step, all in'),
            ('session_run_secs', 'in the session'), ('input_wait_secs', 'waiting for input'),
            ('between_secs', 'between sessions'))
QUANTILES = ('mean', 'p50', 'p90', 'p99', 'max')


class Segment(NamedTuple):
  """A part of a bar: its name, its figure in words, and its share of the bar."""
  name: str
  figure: str
  share: float


class Headline(NamedTuple):
  """A figure at the top of the page.

  Attributes:
    name: what it is.
    value, error, unit: the figure and its standard error; either of the latter may be empty.
    notes: what is to be known about it, a line each.
    bar: what it is made of; empty where that is not known.
  """
  name: str
  value: str
  error: str
  unit: str
  notes: List[str]
  bar: List[Segment]


def title(files: Files) -> str:
  """Returns what was trained on what."""
  model, dataset = (files.throughput.get(name) or files.flags.given.get(name)
                    for name in ('model', 'dataset'))
  return '{} on {}'.format(model, dataset) if model and dataset else 'Report'


def conditions(files: Files) -> List[Tuple[str, str]]:
  """Returns what a reader must know to compare the figures: names and values."""
  throughput = files.throughput
  if not throughput:
    return []
  batch = words.quantity(throughput.get('global_batch_size'), 'examples')
  if throughput.get('num_replicas', 1) > 1:
    batch += ', {} a replica'.format(words.number(throughput.get('per_replica_batch_size')))
  found = (
      ('Strategy', throughput.get('distribution_strategy')),
      ('Replicas', words.number(throughput.get('num_replicas'))),
      ('Workers', words.number(throughput.get('num_workers'))),
      ('Devices', ', '.join(throughput.get('devices', []))),
      ('Global batch', batch),
      ('Last step', words.number(throughput.get('global_step'))),
      ('TensorFlow', throughput.get('tensorflow_version')))
  return [(name, str(value)) for name, value in found if value]


def headlines(files: Files) -> List[Headline]:
  """Returns the figures at the top of the page."""
  return [*_of_throughput(files.throughput), *_of_evaluation(files.evaluation)]


def _of_throughput(throughput: Dict[str, Any]) -> Iterator[Headline]:
  if not throughput:
    return
  rate = throughput.get('steady_examples_per_sec', throughput.get('examples_per_sec'))
  steady = throughput.get('steady_step_secs', throughput.get('step_secs', {}))
  mean, error = steady.get('mean'), throughput.get('standard_error_secs')
  spread = ''
  notes = ['{} timed steps after a warm-up of {}'.format(
      words.number(throughput.get('steps_timed')), words.number(throughput.get('warmup_steps')))]
  if words.is_number(error) and mean:
    spread = '± ' + words.number(rate * error / mean)
    notes[0] = '± standard error; ' + notes[0]
  if throughput.get('steady_state') is False:
    notes = ['no steady state: the run is shorter than its warm-up, and all its steps count']
  if throughput.get('pauses'):
    notes.append('without checkpoints and evaluations; {} with them'.format(
        words.quantity(throughput.get('examples_per_sec'), 'examples/s')))
  if throughput.get('num_replicas', 1) > 1:
    notes.append(words.quantity(throughput.get('examples_per_sec_per_replica'), 'examples/s')
                 + ' a replica')
  yield Headline('Throughput', words.number(rate), spread, 'examples/s', notes, [])
  yield Headline('Step time, median', words.secs(steady.get('p50')), '', '', [
      '99 of 100 steps within ' + words.secs(steady.get('p99'))], [])
  if words.is_number(throughput.get('time_to_first_step_secs')):
    yield Headline('Time to first step', words.secs(throughput['time_to_first_step_secs']), '', '',
                   ['from the start of the process to the end of the first step'],
                   _first_step(throughput.get('first_step_parts_secs') or {}))


def _of_evaluation(evaluation: Dict[str, Any]) -> Iterator[Headline]:
  accuracy, examples = evaluation.get('accuracy'), evaluation.get('examples')
  if accuracy is None:
    return
  spread = unit = ''
  notes = ['of {} at step {}'.format(words.quantity(examples, 'examples'),
                                     words.number(evaluation.get('global_step'))),
           'average loss {} an example'.format(words.number(evaluation.get('average_loss')))]
  if examples:
    spread = '± {:.2f}'.format(1e2 * math.sqrt(accuracy * (1 - accuracy) / examples))
    unit = 'percentage points'
    notes[0] = '± standard error; ' + notes[0]
  yield Headline('Accuracy', '{:.2f}\u00a0%'.format(1e2 * accuracy), spread, unit, notes, [])


def _first_step(parts: Dict[str, float]) -> List[Segment]:
  whole = sum(parts.values())
  return [Segment(text, words.secs(parts[name]), parts[name] / whole)
          for name, text in _FIRST_STEP_PARTS if parts.get(name, 0) > 0]


def verdict(files: Files) -> Optional[Dict[str, Any]]:
  """Returns what training waits for: `text`, `name`, `bar`, and `input`, or None if unknown.

  `input` is what the benchmark of the input found: its `advice` and its `rates`.
  """
  name = files.throughput.get('verdict')
  shares = files.throughput.get('shares') or {}
  measured = files.input_benchmark
  rates = [(what, words.quantity(measured.get(key), 'images/s')) for key, what in (
      ('cold_images_per_sec', 'input, files not in memory'),
      ('warm_images_per_sec', 'input, files read before'),
      ('model_images_per_sec', 'model')) if words.is_number(measured.get(key))]
  if not (name or shares or measured):
    return None
  return {
      'name': name, 'text': _VERDICTS.get(name or '', ''),
      'bar': [Segment(text, words.percent(shares[key]), shares[key])
              for key, text in _SHARES if (shares.get(key) or 0) > 0],
      'input': {'verdict': measured.get('verdict'), 'advice': measured.get('advice'),
                'rates': rates}}


def times(throughput: Dict[str, Any]) -> List[Tuple[str, List[str]]]:
  """Returns the rows of the table of times: what, and its QUANTILES."""
  return [(text, [words.secs(throughput[key].get(name)) for name in QUANTILES])
          for key, text in _SPREADS if throughput.get(key)]


def remarks(throughput: Dict[str, Any]) -> List[str]:
  """Returns what else is to be said about the steps."""
  found = []
  drift = throughput.get('drift')
  if drift is not None:
    found.append('The last quarter of the steps took {} {} than the first.'.format(
        words.percent(abs(drift)), 'longer' if drift > 0 else 'less'))
  for what, pause in sorted((throughput.get('pauses') or {}).items()):
    found.append('Pauses for {}: {}, {} in all.'.format(
        what, words.number(pause['count']), words.secs(pause['secs'])))
  outliers = throughput.get('outliers')
  if outliers:
    found.append('Far slower than the rest: ' + ', '.join('step {} ({})'.format(
        words.number(outlier['global_step']), words.secs(outlier['secs']))
        for outlier in outliers) + '.')
  return found

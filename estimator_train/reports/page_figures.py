"""The figures of the report page: headlines, parts of the step time, and tables of times."""

import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from estimator_train.reports import words
from estimator_train.reports.page_files import PageData

_VERDICTS = {
    'input-bound': 'Training waits for the input pipeline.',
    'compute-bound': 'Training is limited by the computation of the model.',
    'overhead-bound': 'Training is limited by the time between steps.',
}
_STEP_PARTS = (
    ('input', 'waiting for input'), ('compute', 'computing'), ('between', 'between steps'))
_FIRST_STEP_PARTS = (
    ('import', 'imports'), ('data', 'data'), ('peers', 'peers'), ('model', 'model'),
    ('graph', 'graph'), ('session', 'session'), ('first_batch', 'first batch'),
    ('first_step', 'first step'))
_DISTRIBUTIONS = (
    ('steady_step_secs', 'steady step'), ('step_secs', 'step, including pauses'),
    ('session_run_secs', 'session run'), ('input_wait_secs', 'waiting for input'),
    ('between_secs', 'between session runs'))
QUANTILES = ('mean', 'p50', 'p90', 'p99', 'max')


class BarSegment(NamedTuple):
  """A segment of a stacked bar: its name, its formatted figure, and its fraction of the bar."""
  name: str
  figure: str
  share: float


class Headline(NamedTuple):
  """A figure at the top of the page.

  Attributes:
    name: title.
    value: formatted figure.
    error: formatted standard error; may be empty.
    unit: unit; may be empty.
    notes: notes on the figure, one per line.
    bar: parts of the figure; empty if they are not known.
  """
  name: str
  value: str
  error: str
  unit: str
  notes: List[str]
  bar: List[BarSegment]


def title(data: PageData) -> str:
  """Returns the title of the page: the model and the data set."""
  model, dataset = (data.throughput.get(name) or data.flags.given.get(name)
                    for name in ('model', 'dataset'))
  return '{} on {}'.format(model, dataset) if model and dataset else 'Report'


def conditions(data: PageData) -> List[Tuple[str, str]]:
  """Returns the conditions that figures of different runs depend on, as (name, value)."""
  throughput = data.throughput
  if not throughput:
    return []
  batch = words.format_quantity(throughput.get('global_batch_size'), 'examples')
  if throughput.get('num_replicas', 1) > 1:
    batch += ', {} per replica'.format(
        words.format_number(throughput.get('per_replica_batch_size')))
  values = (
      ('Strategy', throughput.get('distribution_strategy')),
      ('Replicas', words.format_number(throughput.get('num_replicas'))),
      ('Workers', words.format_number(throughput.get('num_workers'))),
      ('Devices', ', '.join(throughput.get('devices', []))),
      ('Global batch', batch),
      ('Last step', words.format_number(throughput.get('global_step'))),
      ('TensorFlow', throughput.get('tensorflow_version')))
  return [(name, str(value)) for name, value in values if value]


def headlines(data: PageData) -> List[Headline]:
  """Returns the figures at the top of the page."""
  return [*_throughput_headlines(data.throughput), *_evaluation_headlines(data.evaluation)]


def _throughput_headlines(throughput: Dict[str, Any]) -> Iterator[Headline]:
  if not throughput:
    return
  rate = throughput.get('steady_examples_per_sec', throughput.get('examples_per_sec'))
  steady = throughput.get('steady_step_secs', throughput.get('step_secs', {}))
  mean, error = steady.get('mean'), throughput.get('standard_error_secs')
  spread = ''
  notes = ['{} timed steps after {} warm-up steps'.format(
      words.format_number(throughput.get('steps_timed')),
      words.format_number(throughput.get('warmup_steps')))]
  if words.is_number(error) and mean:
    spread = '± ' + words.format_number(rate * error / mean)
    notes[0] = '± standard error; ' + notes[0]
  if throughput.get('steady_state') is False:
    notes = ['no steady state: the run is not longer than its warm-up, so all steps are timed']
  if throughput.get('pauses'):
    notes.append('excluding checkpoints and evaluations; {} including them'.format(
        words.format_quantity(throughput.get('examples_per_sec'), 'examples/sec')))
  if throughput.get('num_replicas', 1) > 1:
    notes.append(words.format_quantity(throughput.get('examples_per_sec_per_replica'),
                                       'examples/sec') + ' per replica')
  yield Headline('Throughput', words.format_number(rate), spread, 'examples/sec', notes, [])
  yield Headline('Step time, median', words.format_secs(steady.get('p50')), '', '', [
      '99 of 100 steps within ' + words.format_secs(steady.get('p99'))], [])
  if words.is_number(throughput.get('time_to_first_step_secs')):
    yield Headline('Time to first step', words.format_secs(throughput['time_to_first_step_secs']),
                   '', '', ['from the start of the process to the end of the first step'],
                   _first_step_segments(throughput.get('first_step_parts_secs') or {}))


def _evaluation_headlines(evaluation: Dict[str, Any]) -> Iterator[Headline]:
  accuracy, examples = evaluation.get('accuracy'), evaluation.get('examples')
  if accuracy is None:
    return
  spread = unit = ''
  notes = ['on {} at step {}'.format(words.format_quantity(examples, 'examples'),
                                     words.format_number(evaluation.get('global_step'))),
           'average loss {} per example'.format(
               words.format_number(evaluation.get('average_loss')))]
  if examples:
    spread = '± {:.2f}'.format(1e2 * math.sqrt(accuracy * (1 - accuracy) / examples))
    unit = 'percentage points'
    notes[0] = '± standard error; ' + notes[0]
  yield Headline('Accuracy', '{:.2f}\u00a0%'.format(1e2 * accuracy), spread, unit, notes, [])


def _first_step_segments(parts: Dict[str, float]) -> List[BarSegment]:
  total = sum(parts.values())
  return [BarSegment(text, words.format_secs(parts[name]), parts[name] / total)
          for name, text in _FIRST_STEP_PARTS if parts.get(name, 0) > 0]


def verdict(data: PageData) -> Optional[Dict[str, Any]]:
  """Returns what limits the training speed, or None if that is not known.

  Returns:
    `name` and `text` of the verdict, `bar` with the parts of the step time, and `input` with the
    `verdict`, the `advice` and the `rates` of `--mode=input_benchmark`.
  """
  name = data.throughput.get('verdict')
  shares = data.throughput.get('shares') or {}
  benchmark = data.input_benchmark
  rates = [(what, words.format_quantity(benchmark.get(key), 'images/sec')) for key, what in (
      ('cold_images_per_sec', 'input, files not in memory'),
      ('warm_images_per_sec', 'input, files in memory'),
      ('model_images_per_sec', 'model')) if words.is_number(benchmark.get(key))]
  if not (name or shares or benchmark):
    return None
  return {
      'name': name, 'text': _VERDICTS.get(name or '', ''),
      'bar': [BarSegment(text, words.format_percent(shares[key]), shares[key])
              for key, text in _STEP_PARTS if (shares.get(key) or 0) > 0],
      'input': {'verdict': benchmark.get('verdict'), 'advice': benchmark.get('advice'),
                'rates': rates}}


def time_rows(throughput: Dict[str, Any]) -> List[Tuple[str, List[str]]]:
  """Returns the rows of the table of times: a title, and its formatted QUANTILES."""
  return [(text, [words.format_secs(throughput[key].get(name)) for name in QUANTILES])
          for key, text in _DISTRIBUTIONS if throughput.get(key)]


def step_remarks(throughput: Dict[str, Any]) -> List[str]:
  """Returns sentences about the drift, the pauses and the outliers of the steps."""
  sentences = []
  drift = throughput.get('drift')
  if drift is not None:
    sentences.append('The last quarter of the steps took {} {} than the first quarter.'.format(
        words.format_percent(abs(drift)), 'longer' if drift > 0 else 'less time'))
  for kind, pause in sorted((throughput.get('pauses') or {}).items()):
    sentences.append('Pauses for {}: {}, {} in total.'.format(
        kind, words.format_number(pause['count']), words.format_secs(pause['secs'])))
  outliers = throughput.get('outliers')
  if outliers:
    sentences.append('Much slower than the other steps: ' + ', '.join('step {} ({})'.format(
        words.format_number(outlier['global_step']), words.format_secs(outlier['secs']))
        for outlier in outliers) + '.')
  return sentences

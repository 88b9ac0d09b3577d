"""Formats the title, the figures, the remarks and the numbers on the report page.

The templates call the functions of this module as `content.NAME`. Their arguments are the contents
of the files in a `model_dir`, which are empty if a file is missing. Most numbers have three
significant digits.
"""

import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.reports.evaluation import ERRORS_FILE, VALUES_FILE

MISSING = '–'
_NO_BREAK_SPACE = '\u00a0'  # Keeps a number and its unit on one line.
_VERDICT_TEXTS = {
    'input-bound': 'Training waits for the input pipeline.',
    'compute-bound': 'Training is limited by the computation of the model.',
    'overhead-bound': 'Training is limited by the time between steps.',
}
# The parts of a step: (key of `shares` in throughput.json, name on the page).
_STEP_PARTS = (
    ('input', 'waiting for input'), ('compute', 'computing'),
    ('unobserved', 'waiting for input and computing'), ('between', 'between steps'))
# The parts of the time to the first step: (key of `first_step_parts_secs` in throughput.json, name
# on the page).
_FIRST_STEP_PARTS = (
    ('import', 'imports'), ('data', 'data'), ('peers', 'peers'), ('model', 'model'),
    ('graph', 'graph'), ('session', 'session'), ('first_batch', 'first batch'),
    ('first_step', 'first step'))
# The rows of the table of times: (key of a distribution in throughput.json, title).
_TIME_ROWS = (
    ('steady_step_secs', 'steady step'), ('step_secs', 'step, including pauses'),
    ('session_run_secs', 'session run'), ('input_wait_secs', 'waiting for input'),
    ('between_secs', 'between session runs'))
# Keys of evaluation.json that other parts of the page show.
_OTHER_EVALUATION_KEYS = ('accuracy', 'average_loss', 'loss', 'regularization_loss', 'examples',
                          'global_step')
# The metrics of all classes together: (key of evaluation.json, name on the page).
_CLASSIFIER_METRICS = (
    ('top_5_accuracy', 'Top-5 accuracy'), ('macro_precision', 'Macro precision'),
    ('macro_recall', 'Macro recall'), ('macro_f1', 'Macro F1'),
    ('calibration_error', 'Calibration error'))
# The columns of the table of times, which are the keys of a distribution in throughput.json.
STATISTICS = ('mean', 'p50', 'p90', 'p99', 'max')


class BarSegment(NamedTuple):
  """A segment of a stacked bar, which stands for a part of a duration.

  Attributes:
    name: name of the part.
    value: the formatted duration or percentage of the part.
    share: the length of the segment, as a fraction of the bar.
  """
  name: str
  value: str
  share: float


class Headline(NamedTuple):
  """A figure at the top of the page.

  Attributes:
    name: name of the figure, for example `Throughput`.
    value: the figure, formatted.
    notes: notes on the figure, one per line.
    standard_error: the standard error of the figure, formatted; empty if unknown.
    unit: the unit, which the page shows after the standard error; may be empty.
    bar: the parts of the figure, which the page shows as a stacked bar; empty if unknown.
  """
  name: str
  value: str
  notes: List[str]
  standard_error: str = ''
  unit: str = ''
  bar: Sequence[BarSegment] = ()


class OutputResults(NamedTuple):
  """The evaluation of an output of the model.

  Attributes:
    name: the name of the output; '' for metrics that belong to no single output.
    metrics: (metric, formatted value).
    charts: the file names of the charts of an output that predicts numbers.
  """
  name: str
  metrics: List[Tuple[str, str]]
  charts: List[str]


def title(throughput: Dict[str, Any], flags: Dict[str, str]) -> str:
  """Returns the title of the page: the model and the data set."""
  model, dataset = (throughput.get(name) or flags.get(name) for name in ('model', 'dataset'))
  return '{} on {}'.format(model, dataset) if model and dataset else 'Report'


def conditions(throughput: Dict[str, Any]) -> List[Tuple[str, str]]:
  """Returns the conditions under which the figures were measured, as (name, value)."""
  if not throughput:
    return []
  batch = format_quantity(throughput.get('global_batch_size'), 'examples')
  if throughput.get('num_replicas', 1) > 1:
    batch += ', {} per replica'.format(format_number(throughput.get('per_replica_batch_size')))
  values = (
      ('Strategy', throughput.get('distribution_strategy')),
      ('Replicas', format_number(throughput.get('num_replicas'))),
      ('Workers', format_number(throughput.get('num_workers'))),
      ('Devices', ', '.join(throughput.get('devices', []))),
      ('Global batch', batch),
      ('Last step', format_number(throughput.get('global_step'))),
      ('TensorFlow', throughput.get('tensorflow_version')))
  return [(name, str(value)) for name, value in values if value not in (None, '', MISSING)]


def headlines(throughput: Dict[str, Any], evaluation: Dict[str, Any]) -> List[Headline]:
  """Returns the figures at the top of the page."""
  return [*_throughput_headlines(throughput), *_evaluation_headlines(evaluation)]


def _throughput_headlines(throughput: Dict[str, Any]) -> Iterator[Headline]:
  """Yields the throughput, the median step time and the time to the first step."""
  if not throughput:
    return
  rate = throughput.get('steady_examples_per_sec', throughput.get('examples_per_sec'))
  unit = 'examples/sec'
  if rate is None:  # The batch size is unknown.
    rate = throughput.get('steady_steps_per_sec', throughput.get('steps_per_sec'))
    unit = 'steps/sec'
  step_secs = throughput.get('steady_step_secs', throughput.get('step_secs', {}))
  mean_secs, error_secs = step_secs.get('mean'), throughput.get('standard_error_secs')
  standard_error = ''
  if 'steps_timed' not in throughput:  # There is no throughput.json; the rate is from event files.
    yield Headline('Throughput', format_number(rate), [
        'between the logged steps, including checkpoints and evaluations'], unit=unit)
    return
  notes = ['{} timed steps after {} warm-up steps'.format(
      format_number(throughput.get('steps_timed')), format_number(throughput.get('warmup_steps')))]
  if throughput.get('steady_state') is False:
    notes = ['no steady state: the run is not longer than its warm-up, so all steps are timed']
  if is_number(error_secs) and mean_secs and rate is not None:
    standard_error = '± ' + format_number(rate * error_secs / mean_secs)
    notes[0] = '± standard error; ' + notes[0]
  if throughput.get('pauses'):
    notes.append('excluding checkpoints and evaluations; {} including them'.format(
        format_quantity(throughput.get(unit.replace('/', '_per_')), unit)))
  if throughput.get('num_replicas', 1) > 1 and throughput.get('examples_per_sec_per_replica'):
    notes.append(format_quantity(throughput.get('examples_per_sec_per_replica'), 'examples/sec')
                 + ' per replica')
  yield Headline('Throughput', format_number(rate), notes, standard_error, unit)
  yield Headline('Step time, median', format_secs(step_secs.get('p50')), [
      '99 of 100 steps within ' + format_secs(step_secs.get('p99'))])
  if is_number(throughput.get('time_to_first_step_secs')):
    parts = throughput.get('first_step_parts_secs') or {}
    start = 'the complete graph' if parts and 'import' not in parts else 'the start of the process'
    yield Headline(
        'Time to first step', format_secs(throughput['time_to_first_step_secs']),
        ['from {} to the end of the first step'.format(start)],
        bar=[BarSegment(name, format_secs(parts[key]), parts[key] / sum(parts.values()))
             for key, name in _FIRST_STEP_PARTS if parts.get(key, 0) > 0])


def _evaluation_headlines(evaluation: Dict[str, Any]) -> Iterator[Headline]:
  """Yields the accuracy or, without classes, the average loss, unless there is no evaluation."""
  accuracy, examples = evaluation.get('accuracy'), evaluation.get('examples')
  where = 'at step ' + format_number(evaluation.get('global_step'))
  if examples:
    where = 'on {} {}'.format(format_quantity(examples, 'examples'), where)
  loss = format_number(evaluation['average_loss']) if is_number(
      evaluation.get('average_loss')) else None
  if accuracy is not None:
    notes = ['± standard error; ' + where if examples else where]
    if loss is not None:
      notes.append('average loss {} per example'.format(loss))
    headline = Headline('Accuracy', '{:.2f}\u00a0%'.format(1e2 * accuracy), notes)
    if examples:
      headline = headline._replace(unit='percentage points', standard_error='± {:.2f}'.format(
          1e2 * math.sqrt(accuracy * (1 - accuracy) / examples)))
    yield headline
  elif loss is not None:
    notes = [where]
    if is_number(evaluation.get('regularization_loss')):
      notes.append('{} with regularization'.format(format_number(evaluation['loss'])))
    yield Headline('Average loss', loss, notes, unit='per example')


def output_results(evaluation: Dict[str, Any], outputs: Dict[str, Any]) -> List[OutputResults]:
  """Returns the metrics with which the user's model is compiled, and the charts of its outputs.

  If there are several outputs, the names of the metrics and of the loss of an output begin with the
  name of the output.
  """
  metrics = {name: value for name, value in evaluation.items()
             if name not in (*_OTHER_EVALUATION_KEYS, *dict(_CLASSIFIER_METRICS))
             and (value is None or is_number(value))}
  suffix, results = '_loss', []
  charts = {name: [VALUES_FILE.format(index), ERRORS_FILE.format(index)]
            for index, name in enumerate(outputs)}
  for output in [name[:-len(suffix)] for name in metrics if name.endswith(suffix)]:
    rows = [(name[len(output) + 1:], format_number(metrics.pop(name)))
            for name in list(metrics) if name.startswith(output + '_')]
    results.append(OutputResults(output, rows, charts.pop(output, [])))
  rest = [(name, format_number(value)) for name, value in metrics.items()]
  if not results:  # There is one output, whose name is not part of the names of the metrics.
    name, files = charts.popitem() if charts else ('', [])
    results.append(OutputResults(name, rest, files))
  elif rest:
    results.append(OutputResults('', rest, []))
  return [result for result in results if result.metrics or result.charts]


def classifier_metrics(evaluation: Dict[str, Any]) -> List[Tuple[str, str]]:
  """Returns the metrics of all classes together, as (name, formatted value)."""
  return [(name, format_percent(evaluation[key])) for key, name in _CLASSIFIER_METRICS
          if key in evaluation]


def verdict(throughput: Dict[str, Any], benchmark: Dict[str, Any]) -> Optional[Dict[str, Any]]:
  """Describes what limits the training speed.

  Returns:
    `name` and `text` of the verdict; `bar`, the parts of the step time; and `input`, with the
    `verdict`, the `advice` and the `rates` of `--mode=input_benchmark`. None if nothing is known.
  """
  name, shares = throughput.get('verdict'), throughput.get('shares') or {}
  rates = [(text, format_quantity(benchmark.get(key), 'images/sec')) for key, text in (
      ('cold_images_per_sec', 'input, files not in memory'),
      ('warm_images_per_sec', 'input, files in memory'),
      ('model_images_per_sec', 'model')) if is_number(benchmark.get(key))]
  if not (name or shares or benchmark):
    return None
  text = _VERDICT_TEXTS.get(name or '', '')
  if shares and shares.get('input') is None:
    text += ' The wait for input was not observed.'
    shares = dict(shares, unobserved=1 - (shares.get('between') or 0))
  return {
      'name': name, 'text': text.strip(),
      'bar': [BarSegment(text, format_percent(shares[key]), shares[key])
              for key, text in _STEP_PARTS if (shares.get(key) or 0) > 0],
      'input': {'verdict': benchmark.get('verdict'), 'advice': benchmark.get('advice'),
                'rates': rates}}


def time_rows(throughput: Dict[str, Any]) -> List[Tuple[str, List[str]]]:
  """Returns the rows of the table of times: the title, and the formatted STATISTICS."""
  return [(text, [format_secs(throughput[key].get(name)) for name in STATISTICS])
          for key, text in _TIME_ROWS if throughput.get(key)]


def step_remarks(throughput: Dict[str, Any]) -> List[str]:
  """Returns sentences about the drift, the pauses and the outliers of the steps."""
  sentences = []
  drift = throughput.get('drift')
  if drift is not None:
    sentences.append('The last quarter of the steps took {} {} than the first quarter.'.format(
        format_percent(abs(drift)), 'longer' if drift > 0 else 'less time'))
  for kind, pause in sorted((throughput.get('pauses') or {}).items()):
    sentences.append('Pauses for {}: {}, {} in total.'.format(
        kind, format_number(pause['count']), format_secs(pause['secs'])))
  outliers = throughput.get('outliers')
  if outliers:
    sentences.append('Much slower than the other steps: ' + ', '.join('step {} ({})'.format(
        format_number(outlier['global_step']), format_secs(outlier['secs']))
        for outlier in outliers) + '.')
  return sentences


def is_number(value: Any) -> bool:
  """Returns whether the value is a finite number."""
  return isinstance(value, (int, float)) and math.isfinite(value)


def format_number(value: Optional[float]) -> str:
  """Formats a number with three digits; integers and numbers from 100 have no decimals."""
  if not is_number(value):
    return MISSING
  assert value is not None
  # From 99.95 on, `#.3g` would return `100.`. The `#` keeps trailing zeros, which are significant.
  if value == int(value) or abs(value) >= 99.95:
    return '{:,.0f}'.format(value)
  return '{:#.3g}'.format(value)


def format_quantity(value: Optional[float], unit: str) -> str:
  """Formats a number with its unit."""
  return format_number(value) + _NO_BREAK_SPACE + unit if is_number(value) else MISSING


def choose_secs_unit(secs: float) -> Tuple[float, str]:
  """Returns a readable unit for this duration, as (number of units per second, name)."""
  return (1., 's') if secs >= 1 else (1e3, 'ms') if secs >= 1e-3 else (1e6, 'µs')


def format_secs(value: Optional[float]) -> str:
  """Formats a duration in s, ms or µs."""
  if not is_number(value):
    return MISSING
  assert value is not None
  factor, unit = choose_secs_unit(abs(value) or 1.)
  return format_quantity(value * factor, unit)


def format_percent(fraction: Optional[float]) -> str:
  """Formats a fraction as a percentage with one decimal."""
  return '{:.1f}{}%'.format(1e2 * fraction, _NO_BREAK_SPACE) if (
      fraction is not None and is_number(fraction)) else MISSING


def format_ratio(value: Optional[float]) -> str:
  """Formats a ratio, for example a speed-up."""
  return '{:.2f}×'.format(value) if value is not None and is_number(value) else MISSING

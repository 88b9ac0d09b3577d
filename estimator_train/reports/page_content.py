"""Formats the texts and the numbers of the report page.

The templates call the functions of this module as `content.NAME`. Arguments such as `throughput`
and `evaluation` are the contents of the JSON files of these names. The contents of a missing file
are empty.
"""

import datetime
import math
import os
from typing import Any, Collection, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.errors import printable
from estimator_train.reports import verdicts
from estimator_train.reports.evaluation import ERRORS_FILE, VALUES_FILE
from estimator_train.system import formatting
from estimator_train.system.formatting import MISSING, format_number, is_number

_MAX_SHOWN_OUTLIERS = 5
_NO_BREAK_SPACE = '\u00a0'
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
# The rates of --mode=input_benchmark: (key of input_benchmark.json, name on the page).
_BENCHMARK_RATES = (
    ('cold_images_per_sec', 'input, files not in memory'),
    ('warm_images_per_sec', 'input, files in memory'), ('model_images_per_sec', 'model'))
# Keys of evaluation.json that other parts of the page show.
_KEYS_SHOWN_ELSEWHERE = ('accuracy', 'average_loss', 'loss', 'regularization_loss', 'examples',
                         'confusion_matrix', 'global_step')
# The metrics of all classes together: (key of evaluation.json, name on the page).
_CLASSIFIER_METRICS = (
    ('top_5_accuracy', 'Top-5 accuracy'), ('macro_precision', 'Macro precision'),
    ('macro_recall', 'Macro recall'), ('macro_f1', 'Macro F1'))
# Further metrics of classes, by the name of the chart whose caption has the value.
_METRICS_IN_CAPTIONS = {'reliability.png': ('calibration_error', 'Calibration error'),
                        'roc.png': ('roc_auc', 'Area under the ROC curve'),
                        'precision-recall.png': ('average_precision', 'Average precision')}
# The first words of the title of a page, by `--mode`.
_TITLE_BEGINNINGS = {'scaling': 'Scaling', 'reproduce': 'Reproduction',
                 'evaluate': 'Evaluation', 'input_benchmark': 'Input benchmark',
                 'lr_finder': 'Learning rate finder'}
# The columns of the table of times, which are the keys of a distribution in throughput.json.
STATISTICS = ('mean', 'p50', 'p90', 'p99', 'max')


class BarSegment(NamedTuple):
  """A segment of a stacked bar, which shows a part of a figure.

  Attributes:
    share: the fraction of the figure.
  """
  name: str
  value: str
  share: float


class Headline(NamedTuple):
  """A figure in large digits, for example the throughput, with its name and notes.

  Attributes:
    standard_error: the formatted standard error, which precedes the unit; empty if unknown.
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
    name: '' for metrics that belong to no single output.
    metrics: (name, formatted value) of each metric.
    charts: the file names of the charts of an output that predicts numbers.
  """
  name: str
  metrics: List[Tuple[str, str]]
  charts: List[str]


class Title(NamedTuple):
  """The title of a page.

  Attributes:
    text: the mode, the model and the data.
    name: the name of the run.
  """
  text: str
  name: str


def make_title(data: Any, name: str) -> Title:
  """Returns the title of the page of a run.

  Args:
    data: a PageData.
    name: the name of the folder of the run.
  """
  flags = data.flags
  model, dataset = (data.throughput.get(key) or flags.get(key) or data.lr_finder.get(key)
                    for key in ('model', 'dataset'))
  kind = 'Learning rate finder' if data.lr_finder and not data.throughput else (
      _TITLE_BEGINNINGS.get(flags.get('mode') or '', 'Training'))
  return Title('{} of {} on {}'.format(kind, model, describe_data(flags, dataset))
               if model and dataset else 'Report of a run', name)


def describe_data(flags: Dict[str, Optional[str]], dataset: Optional[str]) -> Optional[str]:
  """Returns the name of the data set or, if a flag has its pattern or folder, of this folder.

  The name of a folder has its last two components.

  Args:
    flags: the values of the flags of the run; {} if they are unknown.
    dataset: the name; None to read it from the flags.
  """
  dataset = dataset or flags.get('dataset')
  pattern = flags.get('train_pattern') or (dataset if dataset and os.sep in dataset else None)
  if flags.get('mode') == 'evaluate':
    pattern = flags.get('eval_pattern') or pattern
  if not pattern:
    return dataset
  folders = [each for each in os.path.normpath(pattern.split(',')[0]).split(os.sep)
             if each and not set(each) & set('*?[')]
  return '/'.join(folders[-2:]) or dataset


def describe_run(throughput: Dict[str, Any]) -> List[Tuple[str, str]]:
  """Returns (name, value) of each condition of the run, such as its machine and its devices."""
  if not throughput:
    return []
  batch = format_quantity(throughput.get('global_batch_size'), 'examples')
  if (throughput.get('num_replicas') or 1) > 1:
    batch += ', {} per replica'.format(format_number(throughput.get('per_replica_batch_size')))
  parameters = throughput.get('parameters')
  values = (
      ('Finished', (throughput.get('finished_at') or '')[:16].replace('T', ' ')),
      ('Duration', _describe_duration(throughput)),
      ('Machine', throughput.get('machine')),
      ('Devices', ', '.join(throughput.get('devices') or [])),
      ('Strategy', throughput.get('distribution_strategy')),
      ('Replicas', format_number(throughput.get('num_replicas'))),
      ('Workers', format_number(throughput.get('num_workers'))),
      ('Global batch', batch),
      ('Skipped images', _describe_skipped_images(throughput.get('skipped_images'))),
      ('Last step', format_number(throughput.get('global_step'))),
      ('Parameters', parameters and '{total:,}: {trainable:,} trainable, {frozen:,} frozen'.format(
          **parameters)),
      ('Size of the parameters', parameters and _without_break(
          formatting.format_bytes(parameters['bytes']))),
      ('TensorFlow', throughput.get('tensorflow_version')),
      ('Python', throughput.get('python_version')),
      ('estimator_train', throughput.get('package_version')))
  return [(name, str(value)) for name, value in values if value not in (None, '', MISSING)]


def _describe_skipped_images(skipped: Optional[Dict[str, Any]]) -> Optional[str]:
  if not skipped:
    return None
  num_others = skipped['count'] - len(skipped['files'])
  return '{}: {}{}'.format(
      format_number(skipped['count']), ', '.join(map(printable, skipped['files'])),
      ' and {} more'.format(format_number(num_others)) if num_others > 0 else '')


def _describe_duration(throughput: Dict[str, Any]) -> str:
  """Returns the duration of the run and, if it was resumed, of its part after the resume."""
  run_secs, total_secs, start_step = (
      throughput.get(key) for key in ('run_secs', 'total_run_secs', 'start_step'))
  if not start_step:
    return format_duration(run_secs)
  text = '{} since step {}'.format(format_duration(run_secs), format_number(start_step))
  return text if total_secs is None else '{}, {}'.format(format_duration(total_secs), text)


def make_headlines(throughput: Dict[str, Any], evaluation: Dict[str, Any],
                   curves: Dict[str, Any]) -> List[Headline]:
  """Returns the figures in the first row of the page: accuracy, loss and throughput, if known."""
  last_loss = (curves.get('train_loss') or [None])[-1]
  return [*_make_evaluation_headlines(evaluation, last_loss, curves.get('eval_accuracy') or []),
          *([_make_rate_headline(throughput)] if throughput else [])]


def _make_rate_headline(throughput: Dict[str, Any]) -> Headline:
  """Returns the throughput in examples/sec; in steps/sec if the batch size is unknown."""
  unit = 'steps/sec' if throughput.get('examples_per_sec') is None else 'examples/sec'
  key = unit.replace('/', '_per_')
  rate, steady_rate = throughput.get(key), throughput.get('steady_' + key)
  if 'steps_timed' not in throughput:  # The rate is from event files, not from throughput.json.
    notes = ['between the logged steps, including checkpoints and evaluations']
  else:
    notes = ['over {} steps with their pauses'.format(format_number(throughput['steps_timed']))]
    if throughput.get('steady_state') is False:
      notes[0] += '; no steady state: the run is not longer than its warm-up'
    else:
      notes[0] += ', after {} warm-up steps'.format(format_number(throughput.get('warmup_steps')))
    mean_secs = (throughput.get('steady_step_secs') or {}).get('mean')
    error_secs = throughput.get('standard_error_secs')
    if steady_rate and mean_secs and is_number(error_secs):
      notes.append('steady rate, without checkpoints, evaluations and traced steps: {} ± {} '
                   '(standard error)'.format(format_number(steady_rate), format_number(
                       steady_rate * error_secs / mean_secs)))
  if (throughput.get('num_replicas') or 1) > 1 and throughput.get('examples_per_sec_per_replica'):
    notes.append(format_quantity(throughput.get('examples_per_sec_per_replica'), 'examples/sec')
                 + ' per replica')
  return Headline('Throughput', format_number(rate), notes, unit=unit)


def make_step_headlines(throughput: Dict[str, Any]) -> Iterator[Headline]:
  """Yields the time to the first step, if it is known."""
  if is_number(throughput.get('time_to_first_step_secs')):
    parts = throughput.get('first_step_parts_secs') or {}
    start = 'the complete graph' if parts and 'import' not in parts else 'the start of the process'
    yield Headline(
        'Time to first step', format_secs(throughput['time_to_first_step_secs']),
        ['from {} to the end of the first step'.format(start)],
        bar=[BarSegment(name, format_secs(parts[key]), parts[key] / sum(
            secs for secs in parts.values() if secs > 0))
             for key, name in _FIRST_STEP_PARTS if parts.get(key, 0) > 0])


def _make_evaluation_headlines(evaluation: Dict[str, Any], last_loss: Optional[Sequence[float]],
                               accuracies: Sequence[Sequence[float]]) -> Iterator[Headline]:
  """Yields the accuracy and the loss of the evaluation or, without one, the last training loss.

  Args:
    last_loss: the global step and the value of the last training loss; None if unknown.
    accuracies: the global step and the accuracy of each evaluation of the run.
  """
  accuracy, num_examples = evaluation.get('accuracy'), evaluation.get('examples')
  conditions = 'at step ' + format_number(evaluation.get('global_step'))
  if num_examples:
    conditions = 'on {} {}'.format(format_quantity(num_examples, 'examples'), conditions)
  # The first headline of the evaluation has these notes.
  loss_notes = [conditions, *('not the evaluation of the run: ' + text
                              for text in evaluation.get('differs_from_run') or [])]
  if accuracy is not None:
    notes, error, unit, loss_notes = loss_notes, '', '', []
    if num_examples:
      notes[0], unit = '± standard error; ' + conditions, 'percentage points'
      error = '± ' + format_number(
          1e2 * math.sqrt(max(accuracy * (1 - accuracy), 0) / num_examples))
    highest = max(accuracies, key=lambda point: point[1], default=(0, 0.))
    if highest[1] > accuracy and format_percent(highest[1]) != format_percent(accuracy):
      notes.append('highest: {} at step {}'.format(
          format_percent(highest[1]), format_number(highest[0])))
    yield Headline('Accuracy', format_percent(accuracy), notes, error, unit)
  if is_number(evaluation.get('average_loss')):
    if is_number(evaluation.get('regularization_loss')) and 'loss' in evaluation:
      loss_notes.append('{} with regularization'.format(format_number(evaluation['loss'])))
    if last_loss:
      loss_notes.append('{1} in training, at step {0}'.format(*map(format_number, last_loss)))
    yield Headline('Average loss', format_number(evaluation['average_loss']), loss_notes,
                   unit='per example')
  elif last_loss:
    yield Headline('Training loss', format_number(last_loss[1]),
                   ['at step ' + format_number(last_loss[0])])


def list_output_results(evaluation: Dict[str, Any], outputs: Dict[str, Any]) -> List[OutputResults]:
  """Returns the metrics with which the user's model is compiled, and the charts of its outputs.

  If the model has several outputs, the names of the metrics and of the loss of an output begin with
  its name.
  """
  metrics = {name: value for name, value in evaluation.items()
             if name not in (*_KEYS_SHOWN_ELSEWHERE, *dict(_CLASSIFIER_METRICS),
                             *dict(_METRICS_IN_CAPTIONS.values()))
             and (value is None or is_number(value))}
  loss_suffix, results = '_loss', []
  charts = {name: [VALUES_FILE.format(index), ERRORS_FILE.format(index)]
            for index, name in enumerate(outputs)}
  for output in [name[:-len(loss_suffix)] for name in metrics if name.endswith(loss_suffix)]:
    rows = [(name[len(output) + 1:], format_number(metrics.pop(name)))
            for name in list(metrics) if name.startswith(output + '_')]
    results.append(OutputResults(output, rows, charts.pop(output, [])))
  other_metrics = [(name, format_number(value)) for name, value in metrics.items()]
  if not results:  # There is one output, whose name is not part of the names of the metrics.
    name, files = charts.popitem() if charts else ('', [])
    results.append(OutputResults(name, other_metrics, files))
  elif other_metrics:
    results.append(OutputResults('', other_metrics, []))
  return [result for result in results if result.metrics or result.charts]


def describe_sample(sample: Dict[str, Any]) -> str:
  """Returns the name of the file of an example, or its index; '' if both are unknown.

  The record of a TFRecord file is a part of the name.
  """
  if sample.get('file'):
    return os.path.basename(sample['file'])
  index = sample.get('example')
  return '' if index is None else 'example {}'.format(index)


def list_classifier_metrics(evaluation: Dict[str, Any],
                            charts: Collection[str]) -> List[Tuple[str, str]]:
  """Returns (name, formatted value) of each metric of all classes together.

  Args:
    charts: the names of the charts. A value that is in the caption of a chart is omitted.
  """
  metrics = [*_CLASSIFIER_METRICS, *(
      metric for chart, metric in _METRICS_IN_CAPTIONS.items() if chart not in charts)]
  return [(name, format_percent(evaluation[key])) for key, name in metrics if key in evaluation]


def describe_verdict(throughput: Dict[str, Any],
                     benchmark: Dict[str, Any]) -> Optional[Dict[str, Any]]:
  """Describes what limits the training speed; returns None if nothing is known.

  Returns:
    A dict with the `name` and `text` of the verdict, the parts of the step time as `bar`, and
    (name, formatted value) of each rate of `--mode=input_benchmark` as `rates`.
  """
  name, shares = throughput.get('verdict'), throughput.get('shares') or {}
  if not (name or shares or benchmark):
    return None
  text = verdicts.TEXTS[name].page if name in verdicts.TEXTS else ''
  if shares and shares.get('input') is None:
    text += ' The wait for input was not observed.'
    shares = dict(shares, unobserved=1 - (shares.get('between') or 0))
  return {
      'name': name, 'text': text.strip(),
      'bar': [BarSegment(text, format_percent(shares[key]), shares[key])
              for key, text in _STEP_PARTS if (shares.get(key) or 0) > 0],
      'rates': [(text, format_quantity(benchmark[key], 'images/sec'))
                for key, text in _BENCHMARK_RATES if is_number(benchmark.get(key))]}


def make_time_rows(throughput: Dict[str, Any]) -> List[Tuple[str, List[str]]]:
  """Returns (title, formatted STATISTICS) of each row of the table of times."""
  return [(text, [format_secs(throughput[key].get(name)) for name in STATISTICS])
          for key, text in _TIME_ROWS if throughput.get(key)]


def list_step_remarks(throughput: Dict[str, Any]) -> List[str]:
  """Returns sentences about the drift, the pauses and the outliers of the steps."""
  sentences = []
  drift = throughput.get('drift')
  if drift is not None:
    sentences.append('The last quarter of the steps took {} {} than the first quarter.'.format(
        format_percent(abs(drift)), 'longer' if drift > 0 else 'less time'))
  for kind, pause in sorted((throughput.get('pauses') or {}).items()):
    sentences.append('Pauses for {}: {}, {} in total.'.format(
        kind, format_number(pause['count']), format_secs(pause['secs'])))
  outliers = sorted(throughput.get('outliers') or [], key=lambda outlier: -outlier['secs'])
  if outliers:
    num_others = len(outliers) - _MAX_SHOWN_OUTLIERS
    sentences.append('Much slower than the other steps: {}{}.'.format(', '.join(
        'step {} ({})'.format(format_number(outlier['global_step']), format_secs(outlier['secs']))
        for outlier in outliers[:_MAX_SHOWN_OUTLIERS]), '; throughput.json has {} more'.format(
            num_others) if num_others > 0 else ''))
  return sentences


def format_quantity(value: Optional[float], unit: str) -> str:
  return _without_break(formatting.format_quantity(value, unit))


def format_secs(value: Optional[float]) -> str:
  """Formats a duration in h, min, s, ms or µs."""
  return _without_break(formatting.format_secs(value))


def format_duration(secs: Optional[float]) -> str:
  """Formats a duration as hours, minutes and seconds."""
  return str(datetime.timedelta(seconds=round(secs))) if (
      secs is not None and is_number(secs)) else MISSING


def format_percent(fraction: Optional[float]) -> str:
  """Formats a fraction as a percentage with three digits, but at most two decimals."""
  return _without_break(formatting.format_percent(fraction))


def _without_break(text: str) -> str:
  """Returns the text with a space that keeps a number and its unit on one line."""
  return text.replace(' ', _NO_BREAK_SPACE)

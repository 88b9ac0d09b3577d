"""Logs the accuracy, the throughput and the paths of the files when a training run ends."""

import logging
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

_LOG = logging.getLogger('estimator_train')
_VERDICT_TEXTS = {
    'input-bound': 'input-bound: steps wait for input',
    'compute-bound': 'compute-bound: steps wait for computation',
    'overhead-bound': 'overhead-bound: much time passes between steps',
}


def log_summary(result: Dict[str, Any], best_metric: Optional[str],
                paths: Mapping[str, Optional[str]]) -> None:
  """Logs the summary of a training run, one line per figure and file.

  Args:
    result: the figures of the run; see `throughput.write_throughput_report`.
    best_metric: the metric by which the best checkpoint was selected; None: no evaluation.
    paths: paths of the files that the run wrote, by title; None for a file that was not written.
  """
  _LOG.info('finished at step %d', result['global_step'])
  for name, text in [*_format_figures(result, best_metric), *paths.items()]:
    if text is not None:
      _LOG.info('  %-11s %s', name, text)


def _format_figures(result: Dict[str, Any],
                    best_metric: Optional[str]) -> Iterator[Tuple[str, str]]:
  """Yields (title, text) of the accuracy, the best evaluation and the throughput, if measured."""
  best = result.get('best')
  if best and best_metric:
    main_metric = 'accuracy' if 'accuracy' in result else 'loss'
    yield main_metric, '{:.4f}'.format(result[main_metric])
    is_last = best['global_step'] == result['global_step']
    value = best.get(best_metric)
    yield 'best', '{} {} at step {}{}'.format(
        best_metric.replace('_', ' '),
        'not a number' if value is None else '{:.4f}'.format(value), best['global_step'],
        ', the last step' if is_last else '')
  if 'examples_per_sec' in result:
    bottleneck = _VERDICT_TEXTS.get(result['verdict'])
    yield 'throughput', '{:,.0f} examples/sec{}'.format(
        result['examples_per_sec'], '; ' + bottleneck if bottleneck else '')

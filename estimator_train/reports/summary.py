"""Logs the accuracy, the throughput and the paths of the files when a training run ends."""

import logging
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

_LOG = logging.getLogger('estimator_train')
_VERDICT_TEXTS = {
    'input-bound': 'input-bound: steps wait for input',
    'compute-bound': 'compute-bound: steps wait for computation',
    'overhead-bound': 'overhead-bound: much time passes between steps',
}


def log_summary(result: Dict[str, Any], best_metric: str,
                paths: Mapping[str, Optional[str]]) -> None:
  """Logs the summary of a training run, one line per figure and file.

  Args:
    result: the figures of the run; see `throughput.write_throughput_report`.
    best_metric: the metric by which the best checkpoint was selected.
    paths: paths of the files that the run wrote, by title; None for a file that was not written.
  """
  _LOG.info('finished at step %d', result['global_step'])
  for name, text in [*_format_figures(result, best_metric), *paths.items()]:
    if text is not None:
      _LOG.info('  %-11s %s', name, text)


def _format_figures(result: Dict[str, Any], best_metric: str) -> Iterator[Tuple[str, str]]:
  """Yields (title, text) of the accuracy, the best evaluation and the throughput, if measured."""
  best = result.get('best')
  if best:
    yield 'accuracy', '{:.4f}'.format(result['accuracy'])
    is_last = best['global_step'] == result['global_step']
    yield 'best', '{} {:.4f} at step {}{}'.format(
        best_metric.replace('_', ' '), best[best_metric], best['global_step'],
        ', the last step' if is_last else '')
  if 'examples_per_sec' in result:
    bottleneck = _VERDICT_TEXTS.get(result['verdict'])
    yield 'throughput', '{:,.0f} examples/sec{}'.format(
        result['examples_per_sec'], '; ' + bottleneck if bottleneck else '')

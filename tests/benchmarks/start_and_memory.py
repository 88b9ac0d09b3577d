"""How soon the first step is done, and in how much memory: this package beside the plain workflow.

  python tests/benchmarks/start_and_memory.py --data_dir=DIR [--pairs=3] [--train_steps=100]

Runs article_fashion_mnist.py and `python -m estimator_train` in turn, both with training and
evaluation on Fashion-MNIST in global batches of 256, and measures both from outside: from just
before the process is spawned to the line that tells of its first step, and the peak of its
resident memory, in millions of bytes.
"""

import json
import os
import statistics
import tempfile
from typing import Any, Dict, List

import common

BATCH_SIZE = 256
TARGET_RATIO = 1 / 8
TARGET_MB = 900

_ARTICLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'article_fashion_mnist.py')
_PACKAGE_FIRST_STEP = 'step 1/'


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_data_dir()
  parser.add_count('--pairs', 3, 'runs of each')
  parser.add_count('--train_steps', 100, 'steps of a run')
  parser.add_count('--deadline_secs', 1800, 'seconds after which a run is killed')
  args = parser.parse_args()

  machine = common.machine()
  common.warm_up(args.deadline_secs)
  article: List[Dict[str, Any]] = []
  package: List[Dict[str, Any]] = []
  for number in range(1, args.pairs + 1):
    article.append(_run_article(args.data_dir, args.train_steps, args.deadline_secs))
    common.say('pair {}/{}: article, first step after {first_step_secs:.1f} s, {peak_mb:.0f} MB'
               .format(number, args.pairs, **article[-1]))
    package.append(_run_package(args.data_dir, args.train_steps, args.deadline_secs))
    common.say('pair {}/{}: package, first step after {first_step_secs:.1f} s, {peak_mb:.0f} MB'
               .format(number, args.pairs, **package[-1]))
  _report(machine, args.train_steps, article, package)


def _run_article(data_dir: str, train_steps: int, deadline_secs: float) -> Dict[str, Any]:
  with tempfile.TemporaryDirectory(prefix='benchmark-') as model_dir:
    child = common.run_python(
        [_ARTICLE, '--data_dir=' + data_dir, '--model_dir=' + model_dir,
         '--train_steps={}'.format(train_steps), '--batch_size={}'.format(BATCH_SIZE)],
        deadline_secs)
  return {'first_step_secs': child.secs_until(common.ARTICLE_FIRST_STEP),
          'peak_mb': child.peak_bytes / 1e6}


def _run_package(data_dir: str, train_steps: int, deadline_secs: float) -> Dict[str, Any]:
  child, throughput = common.run_package(
      ['--mode=train_and_evaluate', '--dataset=fashion_mnist', '--data_dir=' + data_dir,
       '--train_steps={}'.format(train_steps), '--batch_size={}'.format(BATCH_SIZE),
       '--log_every_steps=1'],
      deadline_secs)
  return {'first_step_secs': child.secs_until(_PACKAGE_FIRST_STEP),
          'own_first_step_secs': throughput['time_to_first_step_secs'],
          'peak_mb': child.peak_bytes / 1e6,
          'devices': throughput['devices']}


def _report(machine: Dict[str, Any], train_steps: int, article: List[Dict[str, Any]],
            package: List[Dict[str, Any]]) -> None:
  columns = [[run[key] for run in runs] for runs, key in (
      (article, 'first_step_secs'), (package, 'first_step_secs'), (package, 'own_first_step_secs'),
      (article, 'peak_mb'), (package, 'peak_mb'))]
  medians = [statistics.median(column) for column in columns]
  start = common.median_ratio(columns[1], columns[0])
  memory = common.median_ratio(columns[4], columns[3])
  reached = {'first_step': start['of_medians'] <= TARGET_RATIO, 'peak_mb': medians[4] <= TARGET_MB}

  print('{}; devices {}; {} steps of global batch {}\n'.format(
      common.machine_line(machine), ', '.join(package[0]['devices']), train_steps, BATCH_SIZE))
  rows = [_row(str(number), values) for number, values in enumerate(zip(*columns), 1)]
  rows.append(_row('median', medians))
  print(common.markdown_table(
      ['pair', 'article, first step, s', 'package, first step, s', '(as it says itself, s)',
       'ratio', 'article, peak MB', 'package, peak MB', 'ratio'], rows))
  print('\nfirst step: 1/{:.2f} of the article\'s (pairs 1/{:.2f} to 1/{:.2f}); target at most '
        '1/{:g}: {}'.format(1 / start['of_medians'], 1 / start['max'], 1 / start['min'],
                            1 / TARGET_RATIO, common.verdict(reached['first_step'])))
  print('peak memory: {:.0f} MB, 1/{:.2f} of the article\'s (pairs 1/{:.2f} to 1/{:.2f}); target '
        'at most {} MB: {}\n'.format(medians[4], 1 / memory['of_medians'], 1 / memory['max'],
                                  1 / memory['min'], TARGET_MB, common.verdict(reached['peak_mb'])))
  print(json.dumps({
      'benchmark': 'start_and_memory', 'machine': machine, 'train_steps': train_steps,
      'global_batch_size': BATCH_SIZE, 'article': article, 'package': package,
      'first_step_ratio': start, 'peak_memory_ratio': memory, 'median_peak_mb': medians[4],
      'targets': {'first_step_ratio': TARGET_RATIO, 'peak_mb': TARGET_MB}, 'reached': reached}))


def _row(name: str, values: Any) -> List[str]:
  article_secs, package_secs, own_secs, article_mb, package_mb = values
  return [name, '{:.2f}'.format(article_secs), '{:.2f}'.format(package_secs),
          '{:.2f}'.format(own_secs), '1/{:.2f}'.format(article_secs / package_secs),
          '{:.0f}'.format(article_mb), '{:.0f}'.format(package_mb),
          '1/{:.2f}'.format(article_mb / package_mb)]


if __name__ == '__main__':
  common.exit_with(main)

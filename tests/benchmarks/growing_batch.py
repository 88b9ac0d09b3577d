"""What a growing batch costs in accuracy, and what a scaled learning rate brings back.

  python tests/benchmarks/growing_batch.py --data_dir=DIR [--train_epochs=3] [--seeds=1]

Trains `fashion_cnn` on Fashion-MNIST for the same number of epochs at global batches of 128, 512
and 2,048, with and without --scale_learning_rate and --lr_warmup_epochs, and prints the accuracies
on the test set: their mean over the seeds, and their lowest and highest.
"""

import json
import statistics
from typing import Any, Dict, List, Tuple

import common

BASE_BATCH_SIZE = 128
# (--scale_learning_rate, --lr_warmup_epochs)
RECIPES: Tuple[Tuple[str, float], ...] = (
    ('none', 0.), ('sqrt', 0.), ('sqrt', 1.), ('linear', 0.), ('linear', 1.))
BATCH_SIZES = (BASE_BATCH_SIZE, 512, 2048)


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_data_dir()
  parser.add_count('--train_epochs', 3, 'epochs of a run')
  parser.add_count('--seeds', 1, 'runs of each, each with a seed of its own')
  parser.add_count('--deadline_secs', 1800, 'seconds after which a run is killed')
  args = parser.parse_args()

  machine = common.machine()
  measured: List[Dict[str, Any]] = []
  for batch_size in BATCH_SIZES:
    for scaling, warmup in RECIPES:
      if batch_size == BASE_BATCH_SIZE and (scaling, warmup) != RECIPES[0]:
        continue
      accuracies = [_accuracy(args, batch_size, scaling, warmup, seed)
                    for seed in range(1, args.seeds + 1)]
      measured.append({'batch_size': batch_size, 'scaling': scaling, 'warmup_epochs': warmup,
                       'accuracies': accuracies})
      common.say('batch {}, {}, warm-up {:g}: {}'.format(
          batch_size, scaling, warmup, ', '.join('{:.4f}'.format(value) for value in accuracies)))
  _report(machine, args.train_epochs, measured)


def _accuracy(args: Any, batch_size: int, scaling: str, warmup: float, seed: int) -> float:
  run = common.run_package(
      ['--dataset=fashion_mnist', '--data_dir=' + args.data_dir,
       '--train_epochs={}'.format(args.train_epochs), '--batch_size={}'.format(batch_size),
       '--scale_learning_rate=' + scaling, '--base_batch_size={}'.format(BASE_BATCH_SIZE),
       '--lr_warmup_epochs={}'.format(warmup), '--seed={}'.format(seed)], args.deadline_secs)
  return json.loads(run.child.lines[-1])['accuracy']


def _report(machine: Dict[str, Any], train_epochs: int, measured: List[Dict[str, Any]]) -> None:
  print('{}; fashion_cnn, {} epochs, Adam, 0.001 at batch {}\n'.format(
      common.machine_line(machine), train_epochs, BASE_BATCH_SIZE))
  rows = []
  for scaling, warmup in RECIPES:
    row = [scaling, '{:g}'.format(warmup)]
    for batch_size in BATCH_SIZES:
      found = [entry['accuracies'] for entry in measured if (
          entry['batch_size'], entry['scaling'], entry['warmup_epochs']) == (
              batch_size, scaling, warmup)]
      row.append(_cell(found[0]) if found else '')
    rows.append(row)
  print(common.markdown_table(
      ['learning rate scaled', 'warm-up epochs'] + ['batch {:,}'.format(size)
                                                    for size in BATCH_SIZES], rows))
  print()
  print(json.dumps({'benchmark': 'growing_batch', 'machine': machine,
                    'train_epochs': train_epochs, 'measured': measured}))


def _cell(accuracies: List[float]) -> str:
  text = '{:.4f}'.format(statistics.mean(accuracies))
  if len(accuracies) > 1:
    text += ' ({:.4f}-{:.4f})'.format(min(accuracies), max(accuracies))
  return text


if __name__ == '__main__':
  common.exit_with(main)

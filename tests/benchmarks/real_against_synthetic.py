"""Whether the input keeps up with the model: training on real images and on made-up ones in turn.

  python tests/benchmarks/real_against_synthetic.py --data_dir=DIR [--pairs=5] [--train_steps=300]
      [--batch_size=256]

Runs `python -m estimator_train --mode=train` with --dataset=fashion_mnist and with
--dataset=synthetic, which costs next to nothing to read, and compares `examples_per_sec` of their
throughput.json, both without the first ten steps.
"""

import json
import statistics
from typing import Any, Dict, List

import common

TARGET_RATIO = 0.95
WARMUP_STEPS = 10


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_data_dir()
  parser.add_count('--pairs', 5, 'runs of each')
  parser.add_count('--train_steps', 300, 'steps of a run', minimum=WARMUP_STEPS + 1)
  parser.add_count('--batch_size', 256, 'images a step, over all replicas')
  parser.add_count('--deadline_secs', 1800, 'seconds after which a run is killed')
  args = parser.parse_args()

  machine = common.machine()
  common.warm_up(args.deadline_secs)
  flags = ['--mode=train', '--train_steps={}'.format(args.train_steps),
           '--batch_size={}'.format(args.batch_size),
           '--throughput_warmup_steps={}'.format(WARMUP_STEPS)]
  runs: Dict[str, List[Dict[str, Any]]] = {'fashion_mnist': [], 'synthetic': []}
  for number in range(1, args.pairs + 1):
    for dataset, results in runs.items():
      run = common.run_package(
          flags + ['--dataset=' + dataset, '--data_dir=' + args.data_dir], args.deadline_secs)
      results.append(run.throughput)
      common.say('pair {}/{}: {}, {:,.0f} examples/sec'.format(
          number, args.pairs, dataset, run.throughput['examples_per_sec']))
  _report(machine, runs['fashion_mnist'], runs['synthetic'])


def _report(machine: Dict[str, Any], real_runs: List[Dict[str, Any]],
            synthetic_runs: List[Dict[str, Any]]) -> None:
  real, synthetic = ([run['examples_per_sec'] for run in runs]
                     for runs in (real_runs, synthetic_runs))
  ratio = common.median_ratio(real, synthetic)
  reached = ratio['of_medians'] >= TARGET_RATIO
  conditions = {key: real_runs[0][key] for key in (
      'model', 'global_batch_size', 'num_replicas', 'distribution_strategy', 'devices',
      'steps_timed', 'warmup_steps')}

  print('{}; {model} on {}, global batch {global_batch_size}, {steps_timed} steps timed after '
        '{warmup_steps}\n'.format(common.machine_line(machine), ', '.join(conditions['devices']),
                                  **conditions))
  rows = [_row(str(number), *values) for number, values in enumerate(zip(real, synthetic), 1)]
  rows.append(_row('median', statistics.median(real), statistics.median(synthetic)))
  print(common.markdown_table(
      ['pair', 'real, examples/sec', 'synthetic, examples/sec', 'ratio'], rows))
  print('\nreal data reaches {:.3f} of synthetic (pairs {:.3f} to {:.3f}); target at least {}: {}\n'
        .format(ratio['of_medians'], ratio['min'], ratio['max'], TARGET_RATIO,
                common.verdict(reached)))
  print(json.dumps({
      'benchmark': 'real_against_synthetic', 'machine': machine, 'conditions': conditions,
      'real_examples_per_sec': real, 'synthetic_examples_per_sec': synthetic, 'ratio': ratio,
      'targets': {'ratio': TARGET_RATIO}, 'reached': {'ratio': reached}}))


def _row(name: str, real: float, synthetic: float) -> List[str]:
  return [name, '{:,.0f}'.format(real), '{:,.0f}'.format(synthetic),
          '{:.3f}'.format(real / synthetic)]


if __name__ == '__main__':
  common.exit_with(main)

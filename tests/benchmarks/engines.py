"""How fast two workers with one core each exchange gradients, by each engine.

  python tests/benchmarks/engines.py [--pairs=5] [--model=fashion_cnn] [--model=dense_80mb]

Trains on a repeated synthetic batch, so that the input takes no time. The sides run alternately:

- `independent`: two processes that exchange nothing. Their rates are added.
- `multi_worker_mirrored`, `horovod`: two workers of this package.
- `plain_horovod`: an Estimator with Horovod's `DistributedOptimizer`, without this package.

`horovod` and `plain_horovod` require Horovod; scripts/install_horovod installs it.
"""

import concurrent.futures
import importlib.util
import json
import os
import statistics
import sys
from typing import Callable, Dict, List

import common

EXAMPLES_PER_WORKER = 128
WORKERS = 2
# Numbers of measured steps and of steps before them.
STEPS = {'fashion_cnn': (150, 20), 'dense_5mb': (150, 20), 'dense_20mb': (60, 10),
         'dense_80mb': (25, 5)}
CORES = sorted(os.sched_getaffinity(0))
FOLDER = os.path.dirname(os.path.abspath(__file__))
LAUNCHER = 'estimator_train.launcher.local_cluster'
# (Side, side to compare with, target by model).
RATIOS = (
    ('multi_worker_mirrored', 'independent', {'fashion_cnn': .88, 'dense_80mb': .65}),
    ('horovod', 'independent', {'dense_80mb': .75}),
    ('horovod', 'multi_worker_mirrored', {}),
    ('horovod', 'plain_horovod', {'fashion_cnn': .98, 'dense_80mb': .98}),
)


def _flags(model: str, batch_size: int) -> List[str]:
  steps, warmup_steps = STEPS[model]
  return ['--mode=train', '--dataset=synthetic', '--image_size=28,28', '--noreport_page',
          '--model=' + ('large_gradients:' + model if model.startswith('dense') else model),
          '--batch_size={}'.format(batch_size), '--num_gpus=0',
          '--train_steps={}'.format(steps + warmup_steps),
          '--throughput_warmup_steps={}'.format(warmup_steps)]


def _run(flags: List[str], deadline_secs: float, module: str = 'estimator_train') -> float:
  done = common.run_package(flags, deadline_secs, module, variables={
      'PYTHONPATH': os.pathsep.join([str(common.ROOT), FOLDER])})
  return float(done.throughput['examples_per_sec'])


def independent(model: str, deadline_secs: float) -> float:
  """Returns the sum of the rates of processes that run at the same time, each on its own core."""
  def run(core: int) -> float:
    os.sched_setaffinity(0, [core])  # Of this thread, and of the process that it starts.
    return _run(_flags(model, EXAMPLES_PER_WORKER), deadline_secs)

  with concurrent.futures.ThreadPoolExecutor(WORKERS) as threads:
    return sum(threads.map(run, CORES[:WORKERS]))


def package(strategy: str) -> Callable[[str, float], float]:
  def run(model: str, deadline_secs: float) -> float:
    return _run(['--local_workers={}'.format(WORKERS), '--local_cores=1',
                 '--distribution_strategy=' + strategy]
                + _flags(model, WORKERS * EXAMPLES_PER_WORKER), deadline_secs, LAUNCHER)
  return run


def plain_horovod(model: str, deadline_secs: float) -> float:
  """Returns the rate of the script without this package, which horovodrun starts."""
  steps, warmup_steps = STEPS[model]
  child = common.run_python(
      ['-m', 'horovod.runner.launch', '-np', str(WORKERS), sys.executable,
       os.path.join(FOLDER, 'horovod_estimator.py'), '--model=' + model,
       '--batch_size={}'.format(EXAMPLES_PER_WORKER), '--warmup_steps={}'.format(warmup_steps),
       '--train_steps={}'.format(steps + warmup_steps)], deadline_secs,
      variables={'PYTHONPATH': os.pathsep.join([str(common.ROOT), FOLDER]),
                 'TF_CPP_MIN_LOG_LEVEL': '3'})
  result = next(line for line in child.lines if '"images_per_sec"' in line)
  return float(json.loads(result[result.index('{'):])['images_per_sec'])


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_count('--pairs', 5, 'repetitions of each side')
  parser.add_count('--deadline_secs', 300, 'seconds after which a run is killed')
  parser.add_argument('--model', action='append', choices=sorted(STEPS),
                      help='a model to measure (default: all)')
  args = parser.parse_args()
  if len(CORES) < WORKERS:
    parser.error('this benchmark requires {} cores: {} available: use another machine'.format(
        WORKERS, len(CORES)))
  sides: Dict[str, Callable[[str, float], float]] = {
      'independent': independent, 'multi_worker_mirrored': package('multi_worker_mirrored')}
  if importlib.util.find_spec('horovod') is not None:
    sides.update(horovod=package('horovod'), plain_horovod=plain_horovod)
  machine = common.machine()
  common.warm_up(args.deadline_secs)
  results = {}
  for model in args.model or STEPS:
    rates: Dict[str, List[float]] = {side: [] for side in sides}
    for number in range(1, args.pairs + 1):
      for side, run in sides.items():
        rates[side].append(run(model, args.deadline_secs))
        common.log('{} {}/{}: {}: {:,.0f} images/s'.format(
            model, number, args.pairs, side, rates[side][-1]))
    results[model] = {
        'images_per_sec': {side: statistics.median(values) for side, values in rates.items()},
        'ratios': {'{} / {}'.format(over, under): dict(
            common.median_ratio(rates[over], rates[under]), target=targets.get(model))
                   for over, under, targets in RATIOS if over in rates and under in rates}}
  _print(machine, results)


def _print(machine: Dict[str, object], results: Dict[str, Dict[str, Dict[str, object]]]) -> None:
  print('{}\n'.format(common.machine_line(machine)))
  rows = [[model, side, '{:,.0f}'.format(rate), '', '']
          for model, result in results.items() for side, rate in result['images_per_sec'].items()]
  rows += [[model, title, '', '{of_medians:.2f} ({min:.2f} to {max:.2f})'.format(**ratio),
            '' if ratio['target'] is None else '{:g}'.format(ratio['target'])]
           for model, result in results.items() for title, ratio in result['ratios'].items()]
  print(common.markdown_table(['model', 'side', 'images/s', 'ratio of medians', 'target'], rows))
  print()
  print(json.dumps({'benchmark': 'engines', 'machine': machine, 'results': results}))


if __name__ == '__main__':
  common.exit_with(main)

"""What a second worker brings: two with one core each, and one with one core, in turn.

  python tests/benchmarks/two_workers.py [--data_dir=DIR] [--pairs=5] [--train_steps=110]
      [--batch_size=128] [FLAG...]

Trains fashion_cnn: alone in a process that is pinned to one core, then by a local cluster under
--distribution_strategy=multi_worker_mirrored whose two tasks are pinned to one core each, with
twice the global batch, so that every core has the same work in a step. The single process takes the
second core and the first in turn. Compares `examples_per_sec` of throughput.json, without the first
ten steps. Other flags go to the program, in both.
"""

import contextlib
import json
import os
import statistics
from typing import Any, Dict, Iterator, List

import common

TARGET_SPEED_UP = 1.6
WARMUP_STEPS = 10
# One to compute on a single core, and a second one to take what comes from the other worker
# meanwhile.
THREADS = ['--intra_op_parallelism_threads=1', '--inter_op_parallelism_threads=2']


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_data_dir(required=False)
  parser.add_count('--pairs', 5, 'runs of each')
  parser.add_count('--train_steps', 110, 'steps of a run', minimum=WARMUP_STEPS + 1)
  parser.add_count('--batch_size', 128, 'images a step of each worker')
  parser.add_count('--deadline_secs', 1800, 'seconds after which a run is killed')
  args, more = parser.parse_known_args()
  cores = sorted(os.sched_getaffinity(0))
  if len(cores) < 2:
    parser.error('two workers need two cores: there is one: run it elsewhere')

  machine = common.machine()
  common.warm_up(args.deadline_secs)
  flags = ['--mode=train', '--train_steps={}'.format(args.train_steps), '--report_page=false',
           '--throughput_warmup_steps={}'.format(WARMUP_STEPS),
           '--distribution_strategy=multi_worker_mirrored', '--num_gpus=0'] + THREADS
  if args.data_dir:
    flags += ['--dataset=fashion_mnist', '--data_dir=' + args.data_dir]
  runs: Dict[int, List[Dict[str, Any]]] = {1: [], 2: []}
  for number in range(1, args.pairs + 1):
    for workers, results in runs.items():
      results.append(_run(workers, cores[number % 2],
                          flags + ['--batch_size={}'.format(args.batch_size * workers)] + more,
                          args.deadline_secs))
      common.say('pair {}/{}: {} worker(s), {:,.0f} examples/sec'.format(
          number, args.pairs, workers, results[-1]['examples_per_sec']))
  _report(machine, runs[1], runs[2])


def _run(workers: int, core: int, flags: List[str], deadline_secs: float) -> Dict[str, Any]:
  if workers == 1:
    with _pinned_to(core):
      return common.run_package(flags, deadline_secs).throughput
  return common.run_package(['--local_workers={}'.format(workers), '--local_cores=1'] + flags,
                            deadline_secs, 'estimator_train.launcher.local_cluster').throughput


@contextlib.contextmanager
def _pinned_to(core: int) -> Iterator[None]:
  """Keeps this process, and those it starts, on one core as long as it is entered."""
  before = os.sched_getaffinity(0)
  os.sched_setaffinity(0, [core])
  try:
    yield
  finally:
    os.sched_setaffinity(0, before)


def _report(machine: Dict[str, Any], alone_runs: List[Dict[str, Any]],
            both_runs: List[Dict[str, Any]]) -> None:
  alone, both = ([run['examples_per_sec'] for run in runs] for runs in (alone_runs, both_runs))
  alone_steps, both_steps = ([run['step_secs']['p50'] for run in runs]
                             for runs in (alone_runs, both_runs))
  speed_up = common.median_ratio(both, alone)
  step = common.median_ratio(both_steps, alone_steps)
  reached = speed_up['of_medians'] >= TARGET_SPEED_UP
  conditions = {key: both_runs[0][key] for key in (
      'model', 'dataset', 'global_batch_size', 'num_workers', 'distribution_strategy',
      'steps_timed', 'warmup_steps')}

  print('{}; {model} on {dataset}, global batch {global_batch_size} by two workers and {} by one, '
        '{steps_timed} steps timed after {warmup_steps}\n'.format(
            common.machine_line(machine), alone_runs[0]['global_batch_size'], **conditions))
  rows = [_row(str(number), *values)
          for number, values in enumerate(zip(alone, both, alone_steps, both_steps), 1)]
  rows.append(_row('median', *map(statistics.median, (alone, both, alone_steps, both_steps))))
  print(common.markdown_table(
      ['pair', 'one, examples/sec', 'two, examples/sec', 'speed-up', 'one, p50 ms a step',
       'two, p50 ms a step'], rows))
  print('\ntwo workers are {:.2f} times as fast as one (pairs {:.2f} to {:.2f}); target at least '
        '{}: {}\ntheir median step takes {:.2f} times as long (pairs {:.2f} to {:.2f})\n'.format(
            speed_up['of_medians'], speed_up['min'], speed_up['max'], TARGET_SPEED_UP,
            common.verdict(reached), step['of_medians'], step['min'], step['max']))
  print(json.dumps({
      'benchmark': 'two_workers', 'machine': machine, 'conditions': conditions,
      'one_examples_per_sec': alone, 'two_examples_per_sec': both, 'speed_up': speed_up,
      'one_step_secs_p50': alone_steps, 'two_step_secs_p50': both_steps, 'step_ratio': step,
      'targets': {'speed_up': TARGET_SPEED_UP}, 'reached': {'speed_up': reached}}))


def _row(name: str, alone: float, both: float, alone_step: float, both_step: float) -> List[str]:
  return [name, '{:,.0f}'.format(alone), '{:,.0f}'.format(both), '{:.2f}'.format(both / alone),
          '{:.1f}'.format(1e3 * alone_step), '{:.1f}'.format(1e3 * both_step)]


if __name__ == '__main__':
  common.exit_with(main)

"""What TimeHistory, or the progress bar, costs a step.

  python tests/benchmarks/time_history_cost.py [--hooks=progress] [--calls=200000] [--pairs=300]
      [--steps=100]

Twice: its two methods called directly, with a real session's objects; and a loop over a
MonitoredTrainingSession, Estimator's own kind, with the hooks that Estimator always adds (the one
that stops at the last step, and the one that looks whether the loss is finite). Its step is one
assign_add and a loss. It runs with TimeHistory and what that has the graph measure, and without
them in turn; with `--hooks=progress` it is the hooks of the progress bar and of the epochs' lines,
on a terminal whose output is discarded. Both sessions stay open meanwhile and the loops are short,
some 20 ms, so that a slow moment of the machine affects both, or not the median.
"""

import io
import json
import logging
import sys
import time
from types import SimpleNamespace
from typing import Any, Dict, List, NamedTuple, Sequence

import common
import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train import TimeHistory
from estimator_train.model import observation
from estimator_train.run_dir.step_clock import StepClock
from estimator_train.training.progress import LogEpochs, ShowProgress
from estimator_train.training.steps import StepMonitor

TARGET_MICROSECS = 50.
WARMUP_STEPS = 200


class Loop(NamedTuple):
  """A session and what its step runs."""
  session: Any
  step: Any

  def microsecs_per_step(self, steps: int) -> float:
    session, step = self
    began = time.perf_counter()
    for _ in range(steps):
      session.run(step)
    return 1e6 * (time.perf_counter() - began) / steps


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_argument('--hooks', choices=('time_history', 'progress'), default='time_history')
  parser.add_count('--calls', 200000, 'direct calls')
  parser.add_count('--pairs', 300, 'measured loops of each')
  parser.add_count('--steps', 100, 'steps of a loop')
  args = parser.parse_args()

  machine = common.machine()
  tf.logging.set_verbosity(tf.logging.ERROR)
  direct = _called_directly(args.calls)
  without_hook = _make_loop('none')
  with_hook = _make_loop(args.hooks)
  without: List[float] = []
  with_it: List[float] = []
  try:
    for loop in (without_hook, with_hook):
      loop.microsecs_per_step(WARMUP_STEPS)
    for _ in range(args.pairs):
      without.append(without_hook.microsecs_per_step(args.steps))
      with_it.append(with_hook.microsecs_per_step(args.steps))
  finally:
    without_hook.session.close()
    with_hook.session.close()
  _report(machine, args.calls, args.steps, direct, without, with_it)


def _called_directly(calls: int) -> float:
  """Returns the microseconds of one before_run and after_run, the loop around them included."""
  with tf.Graph().as_default(), tf.Session() as session:
    step = tf.train.create_global_step()
    session.run(step.initializer)
    context = tf.train.SessionRunContext(tf.train.SessionRunArgs(step), session)
    metadata = tf.RunMetadata()
    values = tf.train.SessionRunValues(0., tf.RunOptions(), metadata)
    hook = TimeHistory(batch_size=128)
    hook.begin()
    hook.before_run(context)
    hook.after_run(context, values)  # Only the first one asks how old the process is.
    began = time.perf_counter()
    for _ in range(calls):
      hook.before_run(context)
      hook.after_run(context, values)
    return 1e6 * (time.perf_counter() - began) / calls


class _Terminal(io.StringIO):
  """A terminal that keeps nothing."""

  def isatty(self) -> bool:
    return True

  def write(self, text: str) -> int:
    return len(text)


def _make_hooks(name: str) -> List[tf.train.SessionRunHook]:
  if name == 'time_history':
    return [TimeHistory(batch_size=128)]
  if name == 'none':
    return [StepMonitor()]
  sys.stderr = _Terminal()
  logging.getLogger('estimator_train').setLevel(logging.WARNING)
  monitor = StepMonitor()
  run: Any = SimpleNamespace(
      end_step=10 ** 9, event_dir=None, clock=StepClock(((0, 128),), 60000),
      engine=SimpleNamespace(examples_per_step=128),
      settings=SimpleNamespace(reporting=SimpleNamespace(log_every_steps=1000)))
  model: Any = SimpleNamespace(schedule=None)
  return [monitor, ShowProgress(run, model, monitor), LogEpochs(run, model, monitor)]


def _make_loop(hooks_name: str) -> Loop:
  with tf.Graph().as_default():
    images = tf.data.Dataset.from_tensors(tf.zeros([128, 28, 28, 1])).repeat()
    features = tf.data.make_one_shot_iterator(images).get_next()
    loss = tf.reduce_sum(features[0, 0, 0])
    step = tf.group(tf.train.create_global_step().assign_add(1, read_value=False), loss)
    tf.add_to_collection(tf.GraphKeys.LOSSES, loss)
    observation.add_accuracy(tf.zeros([128], tf.int64), tf.ones([128, 10]))
    hooks = _make_hooks(hooks_name) + [tf.train.StopAtStepHook(last_step=2 ** 31 - 1),
                                       tf.train.NanTensorHook(loss)]
    return Loop(tf.train.MonitoredTrainingSession(hooks=hooks), step)


def _report(machine: Dict[str, Any], calls: int, steps: int, direct: float,
            without: List[float], with_it: List[float]) -> None:
  quartiles = {
      'without': _quartiles(without), 'with': _quartiles(with_it),
      'difference': _quartiles([after - before for before, after in zip(without, with_it)])}
  reached = {'direct': direct <= TARGET_MICROSECS,
             'in_session': quartiles['difference'][1] <= TARGET_MICROSECS}

  print('{}; {:,} direct calls, {} pairs of {:,} steps\n'.format(
      common.machine_line(machine), calls, len(without), steps))
  rows = [
      ['before_run and after_run, called directly', '{:.2f}'.format(direct), '',
       common.verdict(reached['direct'])],
      ['step of a session without the hook', *_in_words(quartiles['without']), ''],
      ['step of a session with the hook', *_in_words(quartiles['with']), ''],
      ['difference of a pair', *_in_words(quartiles['difference']),
       common.verdict(reached['in_session'])]]
  print(common.markdown_table(
      ['microseconds', 'median', 'middle half', 'target at most {:g}'.format(TARGET_MICROSECS)],
      rows) + '\n')
  print(json.dumps({
      'benchmark': 'time_history_cost', 'machine': machine, 'calls': calls, 'pairs': len(without),
      'steps': steps, 'direct_microsecs': direct, 'quartiles_microsecs': quartiles,
      'targets': {'microsecs': TARGET_MICROSECS}, 'reached': reached}))


def _quartiles(values: Sequence[float]) -> List[float]:
  return [float(value) for value in np.percentile(values, [25, 50, 75])]


def _in_words(quartiles: Sequence[float]) -> List[str]:
  low, median, high = quartiles
  return ['{:.2f}'.format(median), '{:.2f} to {:.2f}'.format(low, high)]


if __name__ == '__main__':
  common.exit_with(main)

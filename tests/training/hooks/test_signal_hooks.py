"""The hooks that stop or save after a signal."""

import logging
import os
import signal

import pytest
from hook_runs import Steps

from estimator_train.system.signals import SignalState
from estimator_train.training.hooks.stopping import SaveOnSignal, StopOnSignal


class Engine:
  """Stands in for one with some workers."""

  def __init__(self, size=1, announced_stop_step=None):
    self.num_workers, self.announced_stop_step = size, announced_stop_step

  def stop_all_at(self, global_step):
    self.announced_stop_step = min(
        step for step in (self.announced_stop_step, global_step) if step is not None)


@pytest.fixture
def steps():
  return Steps()


@pytest.fixture
def signals():
  with SignalState() as signals:
    yield signals


@pytest.mark.parametrize('engine, ask_at, last', [
    pytest.param(Engine(), 4, 4, id='alone: after the step that asks'),
    pytest.param(Engine(2), 4, 5, id='with others: after the next step'),
    pytest.param(Engine(2, announced_stop_step=6), None, 6, id='another task asks'),
    pytest.param(Engine(2), None, 9, id='nobody asks'),
])
def test_all_stop_at_one_step(steps, signals, engine, ask_at, last):
  stop = StopOnSignal(signals, engine, steps.counter)
  assert steps.run([1.] * 9, stop, before_step=lambda step: (
      stop.request_stop() if step == ask_at else None)) == last
  assert stop.has_stopped == (last < 9) and signals.stop_signum is None
  assert stop.has_stop_signal == (last == 6), 'an evaluation that asks is no signal'
  assert engine.announced_stop_step == (last if last < 9 else None)


def test_only_the_chief_saves_after_a_signal(steps, signals, caplog):
  caplog.set_level(logging.INFO, 'estimator_train')
  for save_now, text in ((lambda session: 'a path', 'saved a path'),
                         (None, 'ignored, because only the chief')):
    steps.run([1.] * 6, StopOnSignal(signals, Engine(), steps.counter),
              SaveOnSignal(signals, save_now), before_step=lambda step: (
                  os.kill(os.getpid(), signal.SIGUSR1) if step in (2, 5) else None))
    assert caplog.text.count('SIGUSR1: ' + text) == 2

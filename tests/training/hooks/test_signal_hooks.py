"""The hooks that stop or save after a signal."""

import logging
import os
import signal

import pytest
from hook_runs import Steps, readings

from estimator_train.process.signals import SignalState
from estimator_train.training.hooks.signals import SaveOnSignal, StopOnSignal


class Engine:
  """Stands in for one with some workers."""

  def __init__(self, size=1, announced_stop_step=None):
    self.size, self.announced_stop_step = size, announced_stop_step

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


@pytest.mark.parametrize('engine, ask_at, ends, last', [
    pytest.param(Engine(), 4, range(1, 99), 4, id='alone: after the step that asks'),
    pytest.param(Engine(2), 4, range(1, 99), 5, id='others hear of it within a second'),
    # The others need as long as always, which is several of the short steps.
    pytest.param(Engine(2), 3, (.5, 1, 31, 31.5, 32, 32.5, 33), 5, id='a long evaluation'),
    pytest.param(Engine(2, announced_stop_step=6), None, range(1, 99), 6, id='another task asks'),
    pytest.param(Engine(2), None, range(1, 99), 9, id='nobody asks'),
])
def test_all_stop_at_one_step(steps, signals, engine, ask_at, ends, last):
  stop = StopOnSignal(signals, engine, steps.counter, clock=readings(0, *ends))
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

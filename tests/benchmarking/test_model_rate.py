"""When the steps of a model count, and when there are enough of them."""

import pytest

from estimator_train.benchmarking import model_rate


class Context:
  """A session's run that can be asked to stop."""

  def __init__(self):
    self.stopped = False

  def request_stop(self):
    self.stopped = True


def run(warmup_steps, step_secs):
  """Returns (the times that count, the steps run) of steps of so many seconds."""
  now = [0.]
  clock = model_rate.StepTimer(warmup_steps, lambda: now[0])
  context = Context()
  steps = 0
  for secs in step_secs:
    now[0] += secs
    steps += 1
    clock.after_run(context, None)
    if context.stopped:
      break
  return list(clock.end_times), steps


def test_warmup_by_steps():
  ended, steps = run(3, [9, 1, 1] + [1] * 50)
  assert ended == [11, 12, 13, 14, 15] and steps == 7


def test_warmup_by_time():
  ended, steps = run(10, [30, 4, 4] + [4] * 50)
  assert ended == [38, 42, 46, 50] and steps == 6  # At least three steps count.


def test_the_first_step_never_counts():
  ended, _ = run(0, [30] + [2] * 50)
  assert ended == [30, 32, 34, 36]


@pytest.mark.parametrize('ended, expected', [
    ([10, 11, 13, 14, 18], [(16, 3), (16, 5)]),
    ([10, 11, 13, 14], [(8, 1), (16, 3)]),
    ([10, 12], [(8, 2)]),
])
def test_segments(ended, expected):
  assert model_rate.split_into_segments(ended, batch_size=8, max_segments=2) == expected

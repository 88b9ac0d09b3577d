"""The steps that are evaluated, by the flags."""

import pytest

from estimator_train.errors import UserError
from estimator_train.run_dir.step_clock import StepClock
from estimator_train.settings import Settings
from estimator_train.training.evaluation_steps import plan_evaluations

CLOCK = StepClock(((0, 8),), 60)
ENDLESS = CLOCK._replace(num_examples=None)


def evaluated_steps(clock, first_step=0, **flags):
  planned = plan_evaluations(Settings(train_steps=31, **flags), clock)
  steps = []
  while planned.next_after((steps or [first_step])[-1]) <= 31:
    steps.append(planned.next_after((steps or [first_step])[-1]))
  assert [step for step in range(first_step + 1, 32)
          if planned.count_until(step) > planned.count_until(step - 1)] == steps
  return steps


@pytest.mark.parametrize('clock, flags, steps', [
    (CLOCK, {}, [8, 15, 23, 30]), (CLOCK, {'eval_every_epochs': 2}, [15, 30]),
    (CLOCK, {'eval_every_epochs': 0}, []), (CLOCK, {'eval_every_steps': 9}, [9, 18, 27]),
    (ENDLESS, {}, []), (ENDLESS, {'eval_every_steps': 9}, [9, 18, 27]),
    # The batch size has changed at step 10, after 80 examples.
    (StepClock(((0, 8), (10, 20)), 60), {}, [8, 12, 15, 18, 21, 24, 27, 30]),
    (StepClock(((0, 600),), 60), {'eval_every_epochs': 20}, list(range(2, 32, 2)))])
def test_steps(clock, flags, steps):
  assert evaluated_steps(clock, **flags) == steps
  assert evaluated_steps(clock, 10, **flags) == [step for step in steps if step > 10]


@pytest.mark.parametrize('flags, message', [
    ({'eval_every_epochs': 1}, '--eval_every_epochs=1: give --eval_every_steps instead'),
    ({'early_stopping_epochs': 2}, '--early_stopping_epochs=2: give --early_stopping_steps'),
    ({'early_stopping_steps': 2}, 'is infinite: give --eval_every_steps=N')])
def test_infinite_data_has_no_epochs(flags, message):
  with pytest.raises(UserError, match=message):
    evaluated_steps(ENDLESS, **flags)

"""Steps, examples and epochs, also of runs whose batch size has changed."""

import pytest
from hypothesis import given, strategies as st

from estimator_train.errors import UserError
from estimator_train.run_dir.step_clock import StepClock
from estimator_train.settings import Settings
from estimator_train.training.run import find_end_step


def test_the_last_step_of_a_number_of_epochs():
  for epochs, examples, batch_sizes, start, steps in (
      (5, 60000, ((0, 1024),), 0, 293), (2, 83484, ((0, 64),), 0, 2609),  # Of the article.
      # Of runs whose batch size has changed.
      (3, 100, ((0, 10), (10, 20)), 10, 20), (3, 100, ((0, 97), (3, 20)), 3, 4),
      (3, 100, ((0, 10), (30, 20)), 30, 30), (3, 100, ((0, 301), (1, 20)), 1, 1)):
    clock = StepClock(batch_sizes, examples)
    assert find_end_step(Settings(train_epochs=epochs), clock, start) == steps
  # Epochs are the decimals that were written.
  for epochs, steps in ((0.1, 1), (1.1, 11), (1e-05, 1), (2, 20), (0.7001, 8)):
    assert StepClock(((0, 1),), 10).step_at_epoch(epochs) == steps
  with pytest.raises(UserError, match='an infinite data set has no epochs: .*: give --train_steps'):
    find_end_step(Settings(train_epochs=1), StepClock(((0, 1),)), 0)


def test_steps_that_were_lost_do_not_count():
  clock = StepClock(((0, 10),))
  for step, examples in ((0, 10), (5, 30), (8, 20), (6, 1), (7, 1)):
    clock = clock.resume_at(step, examples)
  assert clock.batch_sizes == ((0, 10), (5, 30), (6, 1))
  assert list(map(clock.examples_at, (0, 3, 5, 6, 8))) == [0, 30, 50, 80, 82]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=4),
       st.integers(1, 50))
def test_epochs_equal_a_count_of_the_examples(runs, num_examples):
  """Compares with the examples of each step, one after the other."""
  clock, examples = StepClock(((0, 1),), num_examples), [0]
  for steps, examples_per_step in runs:
    clock = clock.resume_at(len(examples) - 1, examples_per_step)
    examples += [examples[-1] + (step + 1) * examples_per_step for step in range(steps)]
  for step, seen in enumerate(examples):
    assert clock.examples_at(step) == seen
    assert clock.completed_epochs(step) == seen // num_examples
  for epoch in range(examples[-1] // num_examples + 1):
    end = next(step for step, seen in enumerate(examples) if seen >= epoch * num_examples)
    assert clock.step_at_epoch(epoch) == end
    assert clock.epoch_at(end) == max(epoch, 1) or examples[end] >= (epoch + 1) * num_examples

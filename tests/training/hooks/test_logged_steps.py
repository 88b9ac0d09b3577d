"""A run logs each `--log_every_steps`, and a long one ever fewer of them."""

import pytest

from estimator_train.training.hooks.logged_steps import is_logged


@pytest.mark.parametrize('every', [1, 7, 100])
def test_each_of_the_first_ten_thousand_is_logged(every):
  assert [step for step in range(1, 10000 * every) if is_logged(step, every)] == list(
      range(every, 10000 * every, every))


def test_then_five_thousand_whenever_the_steps_double():
  counts = [sum(is_logged(step) for step in range(first, 2 * first))
            for first in (10000, 20000, 40000, 80000)]
  assert counts == [5000, 5000, 5000, 5000]


@pytest.mark.parametrize('first, apart', [(10000, 2), (20000, 4), (40000, 8), (640000, 128)])
def test_they_stay_evenly_apart(first, apart):
  logged = [step for step in range(first, first + 10 * apart) if is_logged(step)]
  assert logged == list(range(first, first + 10 * apart, apart))

"""A run logs each `--log_every_steps`, and a long one ever fewer of them."""

import pytest

from estimator_train.training.hooks.logged_steps import is_logged


@pytest.mark.parametrize('every', [1, 7])
def test_each_of_the_first_ten_thousand_then_every_second_fourth_and_so_on(every):
  for first, last, apart in ((1, 10000, 1), (10000, 20000, 2), (20000, 40000, 4),
                             (40000, 80000, 8), (640000, 640128, 128)):
    logged = [step for step in range(first * every, last * every) if is_logged(step, every)]
    begin = first * every if first > 1 else every
    assert logged == list(range(begin, last * every, apart * every))

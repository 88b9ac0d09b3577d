"""Checks of values that were read from JSON."""

import pytest

from estimator_train.system import json_values


def test_the_check_of_a_required_field_counts():
  """Also if an optional field of the same name is less strict."""
  check = json_values.fields({'rate': json_values.number(1)},
                             {'rate': json_values.optional(json_values.number()),
                              'name': json_values.text})
  assert check({'rate': 2, 'other': None}) == {'rate': 2, 'other': None}
  for value, message in (({}, 'rate is missing'), ({'rate': None}, 'rate: expected a number from'),
                         ({'rate': 1, 'name': 2}, 'name: expected text, found 2')):
    with pytest.raises(ValueError, match=message):
      check(value)

"""Per-class figures from a confusion matrix, by hand."""

import pytest

from estimator_train.reports.evaluation import per_class_metrics


def test_per_class():
  figures = per_class_metrics(('a', 'b', 'c'), [[3, 1, 0], [2, 4, 0], [0, 0, 0]])
  assert figures['a'] == {'precision': pytest.approx(3 / 5), 'recall': pytest.approx(3 / 4),
                          'support': 4}
  assert figures['b'] == {'precision': pytest.approx(4 / 5), 'recall': pytest.approx(4 / 6),
                          'support': 6}
  assert figures['c'] == {'precision': None, 'recall': None, 'support': 0}

"""Selects the classes that the report page shows if there are too many to show all."""

from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np

# This many class names are legible next to a chart of the page's width.
_MAX_SHOWN_CLASSES = 30
_MAX_CONFUSIONS = 10


class ClassMetrics(NamedTuple):
  """The metrics of a class.

  Attributes:
    class_index: index of the class in the model's outputs.
    label: class name.
    precision: fraction; None if no example was predicted as this class.
    recall: fraction; None if no example is of this class.
    support: number of examples of this class.
  """
  class_index: int
  label: str
  precision: Optional[float]
  recall: Optional[float]
  support: int


class Confusion(NamedTuple):
  """The number of examples of one class that were predicted as another class.

  Attributes:
    label: name of the true class.
    predicted: name of the predicted class.
    examples: number of such examples.
    share: `examples` ÷ the number of all examples of the true class.
  """
  label: str
  predicted: str
  examples: int
  share: float


class ShownClasses(NamedTuple):
  """The classes that the report page shows.

  Attributes:
    total: number of all classes.
    rows: metrics of the shown classes, in the order of the model's outputs.
    matrix: confusion matrix of the shown classes, int [len(rows), len(rows)].
    confusions: the most frequent confusions among all classes, in descending order.
  """
  total: int
  rows: List[ClassMetrics]
  matrix: np.ndarray
  confusions: List[Confusion]


def select_classes(evaluation: Dict[str, Any]) -> Optional[ShownClasses]:
  """Selects the classes with the most mistakes; returns None if there is no evaluation.

  Args:
    evaluation: the contents of `evaluation.json`.
  """
  matrix = np.array(evaluation.get('confusion_matrix', []), np.int64)
  per_class = evaluation.get('per_class', {})
  if not matrix.size or matrix.shape != (len(per_class), len(per_class)):
    return None
  labels = list(per_class)
  mistakes = matrix - np.diag(np.diag(matrix))
  worst = np.argsort(-(mistakes.sum(axis=0) + mistakes.sum(axis=1)), kind='stable')
  shown = np.sort(worst[:_MAX_SHOWN_CLASSES])
  rows = [ClassMetrics(int(index), labels[index], **per_class[labels[index]]) for index in shown]
  return ShownClasses(len(labels), rows, matrix[np.ix_(shown, shown)],
                      _find_most_frequent_confusions(labels, mistakes, matrix.sum(axis=1)))


def _find_most_frequent_confusions(labels: List[str], mistakes: np.ndarray,
                                   supports: np.ndarray) -> List[Confusion]:
  """Returns the most frequent confusions in descending order."""
  order = np.argsort(-mistakes, axis=None, kind='stable')[:_MAX_CONFUSIONS]
  confusions = []
  for true, predicted in zip(*np.unravel_index(order, mistakes.shape)):
    count = int(mistakes[true, predicted])
    if count:
      confusions.append(Confusion(labels[true], labels[predicted], count, count / supports[true]))
  return confusions

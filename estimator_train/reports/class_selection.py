"""Selects the classes that the report page shows: all, or those with the most mistakes."""

from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np

# With many more classes, the class names would overlap on the axes of the confusion matrix.
_MAX_SHOWN_CLASSES = 30
_MAX_CONFUSIONS = 10


class ClassMetrics(NamedTuple):
  """The metrics of a class.

  Attributes:
    class_index: index of the class in the model's outputs.
    class_name: name of the class.
    precision: fraction; None if no example was predicted as this class.
    recall: fraction; None if no example is of this class.
    support: number of examples of this class.
  """
  class_index: int
  class_name: str
  precision: Optional[float]
  recall: Optional[float]
  support: int


class Confusion(NamedTuple):
  """The number of examples of one class that were predicted as another class.

  Attributes:
    true_class: name of the true class.
    predicted_class: name of the predicted class.
    examples: number of such examples.
    share: `examples` ÷ the number of all examples of the true class.
  """
  true_class: str
  predicted_class: str
  examples: int
  share: float


class ShownClasses(NamedTuple):
  """The classes that the report page shows.

  Attributes:
    num_classes: number of all classes, including those that are not shown.
    rows: metrics of the shown classes, in the order of the model's outputs.
    matrix: confusion matrix of the shown classes, int [len(rows), len(rows)].
    confusions: the most frequent confusions among all classes, by descending `examples`.
  """
  num_classes: int
  rows: List[ClassMetrics]
  matrix: np.ndarray
  confusions: List[Confusion]


def select_classes(evaluation: Dict[str, Any]) -> Optional[ShownClasses]:
  """Returns the classes to show; None if there is no valid confusion matrix.

  Args:
    evaluation: the contents of `evaluation.json`; empty if there is no such file.
  """
  matrix = np.array(evaluation.get('confusion_matrix', []), np.int64)
  per_class = evaluation.get('per_class', {})
  if not matrix.size or matrix.shape != (len(per_class), len(per_class)):
    return None
  class_names = list(per_class)
  mistakes = matrix - np.diag(np.diag(matrix))
  # Each mistake counts for both its true class and its predicted class.
  worst_first = np.argsort(-(mistakes.sum(axis=0) + mistakes.sum(axis=1)), kind='stable')
  shown_indices = np.sort(worst_first[:_MAX_SHOWN_CLASSES])
  rows = [ClassMetrics(int(index), class_names[index], **per_class[class_names[index]])
          for index in shown_indices]
  return ShownClasses(len(class_names), rows, matrix[np.ix_(shown_indices, shown_indices)],
                      _find_most_frequent_confusions(class_names, mistakes, matrix.sum(axis=1)))


def _find_most_frequent_confusions(class_names: List[str], mistakes: np.ndarray,
                                   supports: np.ndarray) -> List[Confusion]:
  """Returns the most frequent confusions, at most _MAX_CONFUSIONS, by descending `examples`.

  Args:
    class_names: class names, by class index.
    mistakes: the confusion matrix with zeros on its diagonal.
    supports: number of examples of each class.
  """
  order = np.argsort(-mistakes, axis=None, kind='stable')[:_MAX_CONFUSIONS]
  confusions = []
  for true, predicted in zip(*np.unravel_index(order, mistakes.shape)):
    count = int(mistakes[true, predicted])
    if count:
      confusions.append(
          Confusion(class_names[true], class_names[predicted], count, count / supports[true]))
  return confusions

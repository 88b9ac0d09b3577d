"""Which classes of an evaluation are shown where there are too many for a picture or a table."""

from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np

MAX_SHOWN = 30  # So many names can be read beside a picture as wide as a page.
_MAX_CONFUSIONS = 10


class Row(NamedTuple):
  """A class: its place among the model's outputs, its name, and its figures.

  Attributes:
    precision: None where nothing was predicted to be of the class.
    recall: None where no example is of it.
    support: the number of its examples.
  """
  number: int
  label: str
  precision: Optional[float]
  recall: Optional[float]
  support: int


class Confusion(NamedTuple):
  """How often examples of one class were taken for another."""
  label: str
  predicted: str
  examples: int
  share: float  # Of the examples of the true class.


class Classes(NamedTuple):
  """The classes that are shown.

  Attributes:
    total: number of all classes.
    rows: of those shown, in the order of the model's outputs.
    matrix: int [len(rows), len(rows)], the confusions among these.
    confusions: the most frequent ones among all classes.
  """
  total: int
  rows: List[Row]
  matrix: np.ndarray
  confusions: List[Confusion]


def choose(evaluation: Dict[str, Any]) -> Optional[Classes]:
  """Returns the classes to show, those with the most mistakes; None without an evaluation.

  Args:
    evaluation: `evaluation.json`.
  """
  matrix = np.array(evaluation.get('confusion_matrix', []), np.int64)
  per_class = evaluation.get('per_class', {})
  if not matrix.size or matrix.shape != (len(per_class), len(per_class)):
    return None
  labels = list(per_class)
  mistakes = matrix - np.diag(np.diag(matrix))
  worst = np.argsort(-(mistakes.sum(axis=0) + mistakes.sum(axis=1)), kind='stable')
  shown = np.sort(worst[:MAX_SHOWN])
  rows = [Row(int(number), labels[number], **per_class[labels[number]]) for number in shown]
  return Classes(len(labels), rows, matrix[np.ix_(shown, shown)],
                 _confusions(labels, mistakes, matrix.sum(axis=1)))


def _confusions(labels: List[str], mistakes: np.ndarray,
                supports: np.ndarray) -> List[Confusion]:
  """Returns the most frequent mistakes, the first first."""
  order = np.argsort(-mistakes, axis=None, kind='stable')[:_MAX_CONFUSIONS]
  found = []
  for true, predicted in zip(*np.unravel_index(order, mistakes.shape)):
    count = int(mistakes[true, predicted])
    if count:
      found.append(Confusion(labels[true], labels[predicted], count, count / supports[true]))
  return found

"""Compares the outputs of an exported model with those of the checkpoint."""

from typing import Dict

import numpy as np

# Exports may differ from the checkpoint by this much in an output, see largest_difference.
TOLERANCE = 1e-5


def largest_difference(expected: Dict[str, np.ndarray], found: Dict[str, np.ndarray]) -> float:
  """Returns the largest absolute difference of the outputs.

  If an output has values beyond [-1, 1], its differences are divided by its largest absolute value.

  Args:
    expected: the outputs of the checkpoint, by name.
    found: outputs with the same names.

  Returns:
    The difference; infinity if a value is not a number, a name is missing or a shape is different.
  """
  differences = [_difference(np.asarray(array), np.asarray(found[name])) if name in found else
                 np.inf for name, array in expected.items()]
  return float(max(differences))


def _difference(expected: np.ndarray, found: np.ndarray) -> float:
  """Returns the largest difference of two arrays."""
  if expected.shape != found.shape:
    return float('inf')
  if not expected.size:
    return 0.
  expected = expected.astype(np.float64)
  difference = np.abs(expected - found).max() / max(1., np.abs(expected).max())
  return float(difference) if np.isfinite(difference) else float('inf')

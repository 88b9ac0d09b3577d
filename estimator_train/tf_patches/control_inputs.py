"""Adds control inputs to existing operations."""

from typing import Sequence

import tensorflow.compat.v1 as tf


def run_before(first: tf.Operation, operations: Sequence[tf.Operation]) -> None:
  """Makes operations that are already in the graph wait for another operation.

  Private name, no workaround: `tf.control_dependencies` applies to new operations only
  (tensorflow_core/python/framework/ops.py:2089).

  Args:
    first: the operation to run first.
    operations: the operations that wait for `first`.
  """
  for operation in operations:
    operation._add_control_input(first)

"""Control inputs of existing operations."""

from typing import Sequence

import tensorflow.compat.v1 as tf


def run_before(first: tf.Operation, operations: Sequence[tf.Operation]) -> None:
  """Adds a control input to operations that are already in the graph.

  Private name, no workaround: `tf.control_dependencies` applies to new operations only
  (tensorflow_core/python/framework/ops.py:2089).

  Args:
    first: the operation to run first.
    operations: the operations that wait for it.
  """
  for operation in operations:
    operation._add_control_input(first)

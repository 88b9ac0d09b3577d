"""Adds control inputs to existing operations."""

from typing import Sequence

import tensorflow.compat.v1 as tf


def run_before(first: tf.Operation, operations: Sequence[tf.Operation]) -> None:
  """Makes operations that are already in the graph wait for the operation `first`.

  Not a workaround for a defect: this function uses the private name `_add_control_input`
  (tensorflow_core/python/framework/ops.py:2089), because the public `tf.control_dependencies`
  applies to new operations only.

  Args:
    first: the operation to run first.
    operations: the operations that wait for `first`.
  """
  for operation in operations:
    operation._add_control_input(first)


def is_in_control_flow(operation: tf.Operation) -> bool:
  """Returns whether an operation belongs to a condition or a loop.

  Not a workaround for a defect: this function uses the private name `_get_control_flow_context`
  (tensorflow_core/python/framework/ops.py:2247), because there is no public one.
  """
  return operation._get_control_flow_context() is not None

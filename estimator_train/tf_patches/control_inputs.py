"""The order of operations that are in the graph already."""

from typing import Sequence

import tensorflow.compat.v1 as tf


def run_before(first: tf.Operation, operations: Sequence[tf.Operation]) -> None:
  """Has operations of the graph wait for another one.

  Private name, no workaround: `tf.control_dependencies` is for operations that are yet to be made
  (tensorflow_core/python/framework/ops.py:2089).
  """
  for operation in operations:
    operation._add_control_input(first)

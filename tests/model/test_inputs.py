"""Batches in the form that a model takes."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import kernels

from estimator_train.model import inputs


@pytest.mark.parametrize('dtype', [np.uint8, np.float32, np.int64])
@pytest.mark.skipif(not tf.test.is_built_with_cuda(),
                    reason='this build of TensorFlow has no GPU kernels')
def test_parts_of_a_batch_are_sliced_by_operations_with_gpu_kernels(dtype):
  values = np.arange(240, dtype=dtype).reshape(8, 5, 6) + np.array(16, dtype)
  with tf.Graph().as_default() as graph, tf.Session() as session:
    index = tf.placeholder(tf.int32, [])
    part, none = inputs.select_micro_batch((tf.constant(values), None), index, 4)
    assert part.dtype == dtype and part.shape.as_list()[1:] == [5, 6] and none is None
    for number in range(4):
      np.testing.assert_array_equal(session.run(part, {index: number}),
                                    values[2 * number:2 * number + 2])
  types = {operation.get_attr('T').as_datatype_enum for operation in graph.get_operations()
           if operation.type == 'StridedSlice'}
  allowed = {value for kernel in kernels.get_registered_kernels_for_op('StridedSlice').kernel
             if kernel.device_type == 'GPU'
             for rule in kernel.constraint for value in rule.allowed_values.list.type}
  assert types <= allowed

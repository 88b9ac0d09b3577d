"""The tensors of a step that hooks fetch."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import kernels

from estimator_train.model import observation


@pytest.mark.skipif(not tf.test.is_built_with_cuda(),
                    reason='this build of TensorFlow has no GPU kernels')
def test_example_images_are_sliced_by_operations_with_gpu_kernels():
  pixels = np.random.RandomState(1).randint(0, 256, [13, 4, 5, 1]).astype(np.uint8)
  with tf.Graph().as_default(), tf.Session() as session:
    observation.add_batch_tensors(tf.constant(pixels), tf.zeros([13], tf.int64), tf.ones([13, 2]))
    images, labels = observation.example_images_and_labels()
    np.testing.assert_array_equal(session.run(images), pixels[:12])
    assert session.run(labels).shape == (12,)
  dtype = images.op.get_attr('T').as_datatype_enum
  assert any(kernel.device_type == 'GPU' and all(
      dtype in rule.allowed_values.list.type for rule in kernel.constraint if rule.name == 'T')
             for kernel in kernels.get_registered_kernels_for_op(images.op.type).kernel)

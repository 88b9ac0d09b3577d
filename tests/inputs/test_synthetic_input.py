"""What the synthetic `input_fn` delivers."""

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.inputs import synthetic
from estimator_train.inputs.batching import Batching


def test_same_batch_again(tmp_path):
  with tf.Graph().as_default(), tf.Session() as session:
    dataset = synthetic.make_input_fn(
        Batching((6, 5, 1), 10, one_hot=True, examples_per_batch=8, seed=3), num_batches=2)()
    iterator = tf.data.make_initializable_iterator(dataset)
    session.run(iterator.initializer)
    following = iterator.get_next()
    (images, labels), (images_again, _) = session.run(following), session.run(following)
    assert images.shape == (8, 6, 5, 1) and images.dtype == np.uint8
    assert 0 <= images.min() < 20 and 235 < images.max() <= 255
    np.testing.assert_array_equal(labels.sum(-1), np.ones(8))
    np.testing.assert_array_equal(images, images_again)

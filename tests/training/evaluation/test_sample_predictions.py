"""Which examples of an evaluation are kept."""

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.training.evaluation import sample_predictions
from estimator_train.training.evaluation.sample_predictions import SamplePredictionsHook


def kept(num_examples, batch_size, is_known=True):
  """Goes through examples whose image, class and output all tell their number."""
  hook = SamplePredictionsHook(num_examples if is_known else None, batch_size)
  with tf.Graph().as_default():
    tf.train.get_or_create_global_step()
    numbers = tf.data.make_one_shot_iterator(
        tf.data.Dataset.range(num_examples).batch(batch_size)).get_next()
    sample_predictions.register_batch(tf.reshape(numbers, [-1, 1, 1, 1]), numbers, numbers[:, None])
    with tf.train.MonitoredSession(hooks=[hook]) as session:
      for _ in range(-(-num_examples // batch_size)):
        session.run(numbers)
  for sample in hook.samples.images:
    assert sample.image.shape == (1, 1, 1) and sample.image[0, 0, 0] == sample.class_index
    assert sample.outputs.tolist() == [sample.class_index]
  return [sample.class_index for sample in hook.samples.images]


@pytest.mark.parametrize('batch_size', [1, 7, 100, 1000])
def test_examples_from_first_to_last(batch_size):
  assert kept(100, batch_size) == [0, 9, 18, 27, 36, 45, 54, 63, 72, 81, 90, 99]


def test_fewer_examples_than_are_kept():
  assert kept(5, 2) == [0, 1, 2, 3, 4]


def test_the_first_ones_of_unknown_many():
  assert kept(100, 8, is_known=False) == list(range(12))


def test_nothing_offered():
  hook = SamplePredictionsHook(10, 5)
  with tf.Graph().as_default():
    tf.train.get_or_create_global_step()
    three = tf.constant(3)
    with tf.train.MonitoredSession(hooks=[hook]) as session:
      assert session.run(three) == 3
  assert hook.samples == ([], [])

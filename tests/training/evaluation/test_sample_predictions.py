"""Which examples of an evaluation are kept."""

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.training.evaluation import sample_predictions
from estimator_train.training.evaluation.sample_predictions import SamplePredictionsHook

EVENLY = [0, 9, 18, 27, 36, 45, 54, 63, 72, 81, 90, 99]


@pytest.mark.parametrize('num_examples, batch_size, is_known, kept', [
    (100, 1, True, EVENLY), (100, 7, True, EVENLY), (100, 1000, True, EVENLY),
    (5, 2, True, [0, 1, 2, 3, 4]), (100, 8, False, list(range(12))),
    (5, 8, False, [0, 1, 2, 3, 4]), (100, 8, None, [])])
def test_examples_from_first_to_last(num_examples, batch_size, is_known, kept):
  """Of examples whose image, class and output all are their number; None: none are registered."""
  hook = SamplePredictionsHook(num_examples if is_known else None, batch_size)
  with tf.Graph().as_default():
    tf.train.get_or_create_global_step()
    numbers = tf.data.make_one_shot_iterator(
        tf.data.Dataset.range(num_examples).batch(batch_size)).get_next()
    outputs = tf.cast(numbers, tf.float32)[:, None]
    if is_known is not None:
      sample_predictions.register_output('number', outputs, outputs + 1)
      sample_predictions.register_batch(
          tf.reshape(numbers, [-1, 1, 1, 1]), numbers, outputs)
    with tf.train.MonitoredSession(hooks=[hook]) as session:
      for _ in range(-(-num_examples // batch_size)):
        session.run(numbers)
  for sample in hook.samples.images:
    assert sample.image.shape == (1, 1, 1) and sample.image[0, 0, 0] == sample.class_index
    assert sample.outputs.tolist() == [sample.class_index]
  assert [sample.class_index for sample in hook.samples.images] == kept
  assert [(name, targets.ravel().tolist(), (outputs - targets == 1).all())
          for name, targets, outputs in hook.samples.outputs] == [
              ('number', list(range(num_examples)), True)] * (is_known is not None)

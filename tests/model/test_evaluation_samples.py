"""Tests of the samples that an evaluation collects."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.model import evaluation_samples

# Example i has the pixel value i, and is wrongly classified if i is odd.
NUM_EXAMPLES, BATCH_SIZE = 29, 2


def collect(num_examples):
  """Evaluates; returns the collected samples, and the tensors that each batch fetched."""
  with tf.Graph().as_default(), tf.Session() as session:
    features = tf.placeholder(tf.float32, [None, 1, 1, 1])
    indices = tf.cast(tf.reshape(features, [-1]), tf.int64)
    confidences = .6 + tf.reshape(features, [-1]) / 100
    probabilities = tf.stack([confidences, 1 - confidences], -1)
    evaluation_samples.add_image_samples(features, indices % 2, probabilities,
                                         tf.argmax(probabilities, -1))
    evaluation_samples.add_output_samples('out', features, 2 * features)
    collector = evaluation_samples.SampleCollector(
        evaluation_samples.take_sampled_tensors(), num_examples, BATCH_SIZE, lambda index: index)
    fetched = []
    for start in range(0, NUM_EXAMPLES, BATCH_SIZE):
      batch = np.arange(start, min(start + BATCH_SIZE, NUM_EXAMPLES)).reshape(-1, 1, 1, 1)
      fetched.append(collector.tensors_to_fetch())
      collector.add_batch(session.run(
          fetched[-1], {features: batch, **collector.values_to_feed()}))
  return collector.samples, fetched


@pytest.mark.parametrize('num_examples, images', [
    (NUM_EXAMPLES, [0, 2, 5, 7, 10, 12, 15, 17, 20, 22, 25, 28]),
    (None, list(range(12)))])  # Of an unknown number of examples, the first ones are collected.
def test_samples_of_all_batches(num_examples, images):
  samples, _ = collect(num_examples)
  assert [sample.identity for sample in samples.images] == images
  assert [int(sample.image) for sample in samples.images] == images
  assert [sample.identity for sample in samples.mistakes] == list(range(27, 4, -2))
  output, = samples.outputs
  np.testing.assert_array_equal(output.targets.ravel(), np.arange(NUM_EXAMPLES))
  np.testing.assert_array_equal(output.outputs, 2 * output.targets)


def test_each_batch_fetches_the_same_tensors():
  """TensorFlow optimizes the graph for each set of tensors. Some batches have no image samples."""
  _, fetched = collect(NUM_EXAMPLES)
  assert all(tensors == fetched[0] for tensors in fetched)

"""Counts of an evaluation: the same however the examples are cut into batches."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.training.evaluation.metrics import classifier_metrics

CLASSES = 3


def count(labels, outputs, batch_size):
  with tf.Graph().as_default(), tf.Session() as session:
    dataset = tf.data.Dataset.from_tensor_slices((labels, outputs)).batch(batch_size)
    batch_labels, batch_outputs = tf.data.make_one_shot_iterator(dataset).get_next()
    metrics = classifier_metrics(tf.zeros([]), batch_labels, None, batch_outputs,
                                 'categorical_crossentropy', CLASSES)
    session.run(tf.local_variables_initializer())
    updates = [update for _, update in metrics.values()]
    for _ in range(-(-len(labels) // batch_size)):
      session.run(updates)
    return session.run({name: value for name, (value, _) in metrics.items()})


@pytest.fixture
def examples():
  random = np.random.RandomState(0)
  outputs = random.dirichlet(np.ones(CLASSES), 250).astype(np.float32)
  return np.eye(CLASSES, dtype=np.float32)[random.randint(CLASSES, size=250)], outputs


@pytest.mark.parametrize('batch_size', [250, 32, 7, 1])
def test_any_batch_size_counts_the_same(examples, batch_size):
  labels, outputs = examples
  true, predicted = labels.argmax(-1), outputs.argmax(-1)
  counted = count(labels, outputs, batch_size)
  assert counted['examples'] == 250
  assert counted['accuracy'] == pytest.approx(np.mean(true == predicted), abs=1e-12)
  losses = -np.log(outputs.astype(np.float64)[np.arange(250), true])
  assert counted['average_loss'] == pytest.approx(losses.mean(), rel=1e-6)
  matrix = np.zeros((CLASSES, CLASSES), int)
  np.add.at(matrix, (true, predicted), 1)
  np.testing.assert_array_equal(counted['confusion_matrix'], matrix)

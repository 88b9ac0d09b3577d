"""Counts of an evaluation: the same however the examples are cut into batches."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.training.evaluation.metrics import classifier_metrics

COUNT, CLASSES = 250, 3


@pytest.mark.parametrize('batch_size', [250, 32, 7, 1])
@pytest.mark.parametrize('loss, weighted', [
    ('categorical_crossentropy', False), ('sparse_categorical_crossentropy', True)])
def test_any_batch_size_counts_the_same(batch_size, loss, weighted):
  random = np.random.RandomState(0)
  outputs = random.dirichlet(np.ones(CLASSES), COUNT).astype(np.float32)
  true, predicted = random.randint(CLASSES, size=COUNT), outputs.argmax(-1)
  weights = random.uniform(1, 2, COUNT).astype(np.float32)
  labels = true if loss.startswith('sparse') else np.eye(CLASSES, dtype=np.float32)[true]
  with tf.Graph().as_default(), tf.Session() as session:
    batch = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(
        (labels, weights, outputs)).batch(batch_size)).get_next()
    metrics = classifier_metrics(tf.zeros([]), batch[0], batch[1] if weighted else None, batch[2],
                                 loss, CLASSES)
    session.run(tf.local_variables_initializer())
    for _ in range(-(-COUNT // batch_size)):
      session.run([update for _, update in metrics.values()])
    counted = session.run({name: value for name, (value, _) in metrics.items()})
  assert counted['examples'] == COUNT
  assert counted['accuracy'] == pytest.approx(np.mean(true == predicted), abs=1e-12)
  losses = -np.log(outputs.astype(np.float64)[np.arange(COUNT), true])
  assert counted['average_loss'] == pytest.approx(
      (losses * (weights if weighted else 1)).mean(), rel=1e-6)
  matrix = np.zeros((CLASSES, CLASSES), int)
  np.add.at(matrix, (true, predicted), 1)
  np.testing.assert_array_equal(counted['confusion_matrix'], matrix)

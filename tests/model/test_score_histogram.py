"""The areas under the curves of two classes, next to those of all scores in sorted order."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.model import confusion_matrix, score_histogram
from estimator_train.reports.evaluation import compute_threshold_curve


def exact_areas(classes, scores):
  """Returns the ROC AUC and the average precision, without bins."""
  positives, negatives = scores[classes == 1], scores[classes == 0]
  wins = (positives[:, np.newaxis] > negatives) + .5 * (positives[:, np.newaxis] == negatives)
  thresholds, counts = np.unique(positives, return_counts=True)
  precisions = [(positives >= each).sum() / (scores >= each).sum() for each in thresholds]
  return wins.mean(), (np.array(precisions) * counts).sum() / len(positives)


@pytest.mark.parametrize('scale', [.01, 1., 15.])
def test_areas_and_curve_beside_sorted_scores(scale):
  """Of scores that are all close to 0.5, spread, or close to 0 and 1."""
  random = np.random.RandomState(0)
  classes = (random.uniform(size=4000) < .3).astype(np.int64)
  log_odds = scale * (random.normal(size=4000) + classes)
  with tf.Graph().as_default() as graph, tf.Session() as session:
    labels, logits = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None, 2])
    metrics = score_histogram.area_metrics(labels, tf.nn.softmax(logits))
    values = {name: value for name, (value, _) in metrics.items()}
    update = tf.group(*[each for _, each in metrics.values()])
    counts = confusion_matrix.recorded_counts()['score_counts']
    initialize = tf.local_variables_initializer()
    graph.finalize()
    for _ in range(2):  # Each evaluation counts from 0.
      session.run(initialize)
      for start in range(0, 4000, 300):
        batch = slice(start, start + 300)
        session.run(update, {labels: classes[batch], logits: np.stack(
            [np.zeros_like(log_odds[batch]), log_odds[batch]], -1)})
    found, counts = session.run([values, counts])
  auc, average_precision = exact_areas(classes, log_odds)
  assert found['roc_auc'] == pytest.approx(auc, abs=2e-4)
  assert found['average_precision'] == pytest.approx(average_precision, abs=1e-3)
  assert counts.shape == (2, score_histogram.NUM_BINS)
  assert counts.sum(1).tolist() == np.bincount(classes).tolist()

  first, *points = compute_threshold_curve(score_histogram.bin_thresholds(), *counts)
  assert first == {'threshold': None, 'recall': 0., 'false_positive_rate': 0., 'precision': None}
  assert 150 < len(points) < 200
  assert points[-1]['recall'] == points[-1]['false_positive_rate'] == 1
  for point in points:
    if point['threshold'] > 1 - 1e-12:  # In float64, different log odds have this probability.
      continue
    is_predicted = 1 / (1 + np.exp(-log_odds)) >= point['threshold']
    # Rounding can move a few scores to the next bin.
    assert point['recall'] == pytest.approx(is_predicted[classes == 1].mean(), abs=3e-3)
    assert point['false_positive_rate'] == pytest.approx(
        is_predicted[classes == 0].mean(), abs=3e-3)
    assert point['precision'] == pytest.approx(classes[is_predicted].mean(), abs=3e-2)


def test_examples_of_one_class():
  with tf.Graph().as_default(), tf.Session() as session:
    metrics = score_histogram.area_metrics(
        tf.zeros([3], tf.int64), tf.constant([[1., 0.], [0., 1.], [.5, .5]]))
    session.run(tf.local_variables_initializer())
    session.run([update for _, update in metrics.values()])
    values = session.run([value for value, _ in metrics.values()])
    negatives, positives = session.run(confusion_matrix.recorded_counts()['score_counts'])
  assert np.isnan(values).all()
  # The bins of the probabilities 0, 0.5 and 1.
  assert np.flatnonzero(negatives).tolist() == [
      0, score_histogram.NUM_BINS // 2, score_histogram.NUM_BINS - 1] and not positives.any()
  assert compute_threshold_curve(score_histogram.bin_thresholds(), negatives, positives) == []

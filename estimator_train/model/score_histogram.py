"""Counts the scores of a classifier of two classes, for its ROC and precision-recall curves.

The score of an example is the probability of the second class, which is the positive class. All
scores of an evaluation are counted in a histogram of a fixed size. Its bins are narrow where scores
are close to 0, 0.5 or 1: the width of a bin at the log odds z is 0.5 % of z, and 0.00005 at z = 0.
Scores in the same bin count as equal.
"""

import math
from typing import Dict, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.model.confusion_matrix import record_counts
from estimator_train.model.running_means import running_sum

NUM_BINS = 4000
_LOG_ODDS_SCALE = 100.
_MIN_PROBABILITY = 1e-38  # The smallest positive number that float32 represents exactly.
_MAX_POSITION = math.asinh(_LOG_ODDS_SCALE * -math.log(_MIN_PROBABILITY))


def area_metrics(class_indices: tf.Tensor,
                 probabilities: tf.Tensor) -> Dict[str, Tuple[tf.Tensor, tf.Operation]]:
  """Returns the areas under the ROC curve and the precision-recall curve, as metrics.

  The function also records `score_counts`, int64 [2, NUM_BINS], the numbers of examples of each
  true class by their scores in ascending order.

  Args:
    class_indices: the true classes, int64 [B].
    probabilities: [B, 2].

  Returns:
    `roc_auc`, the probability that a positive example has a higher score than a negative one, where
    equal scores count half; nan without examples of both classes. `average_precision`, the sum over
    all scores of the precision times the increase of the recall, as in scikit-learn; nan without
    positive examples.
  """
  log_probabilities = tf.log(tf.maximum(tf.cast(probabilities, tf.float64), _MIN_PROBABILITY))
  log_odds = log_probabilities[:, 1] - log_probabilities[:, 0]
  positions = tf.asinh(_LOG_ODDS_SCALE * log_odds) / _MAX_POSITION
  bins = tf.clip_by_value(tf.cast(tf.floor((positions + 1) / 2 * NUM_BINS), tf.int64), 0,
                          NUM_BINS - 1)
  counts, update = running_sum(tf.reshape(tf.math.unsorted_segment_sum(
      tf.ones_like(bins), class_indices * NUM_BINS + bins, 2 * NUM_BINS), [2, NUM_BINS]),
                               'score_counts')
  record_counts('score_counts', counts)
  negatives, positives = tf.unstack(tf.cast(counts, tf.float64))
  positives_from, negatives_from = (tf.cumsum(each, reverse=True)
                                    for each in (positives, negatives))
  wins = positives * (tf.cumsum(negatives, exclusive=True) + negatives / 2)
  return {
      'roc_auc': (tf.reduce_sum(wins) / (tf.reduce_sum(positives) * tf.reduce_sum(negatives)),
                  update),
      'average_precision': (tf.reduce_sum(positives * tf.div_no_nan(
          positives_from, positives_from + negatives_from)) / tf.reduce_sum(positives),
                            tf.no_op())}


def bin_thresholds() -> np.ndarray:
  """Returns the lowest score of each bin, float64 [NUM_BINS]; that of the first bin is 0."""
  positions = np.arange(NUM_BINS) * 2 / NUM_BINS - 1
  log_odds = np.sinh(positions * _MAX_POSITION) / _LOG_ODDS_SCALE
  return np.where(np.arange(NUM_BINS) > 0, 1 / (1 + np.exp(-log_odds)), 0.)

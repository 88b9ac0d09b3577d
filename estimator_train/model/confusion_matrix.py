"""Computes the confusion matrix of an evaluation, and metrics of its classes."""

from typing import Dict, NamedTuple, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.model.running_means import running_sum
from estimator_train.tf_patches import estimator as estimator_patches

# The confusion matrix has an element for each pair of classes. Nobody would read a larger matrix:
# for the 1,000 classes of ImageNet, it has a million elements; for 16,000 classes, it takes 2 GB.
MAX_CLASSES_OF_MATRIX = 100
_MAX_CONFUSIONS = 100
# The graph collection of recorded counts is this prefix with their name.
_RECORDED_PREFIX = 'estimator_train/recorded_counts/'


class ClassCounts(NamedTuple):
  """Numbers of examples for each class, int64 [num_classes].

  Attributes:
    correct: how many examples of the class are predicted correctly.
    true: how many examples belong to the class.
    predicted: how many examples are predicted as the class.
  """
  correct: tf.Tensor
  true: tf.Tensor
  predicted: tf.Tensor


def count_per_class(class_indices: tf.Tensor, predicted: tf.Tensor, num_classes: int) -> tf.Tensor:
  """Counts the examples of a batch. Returns int64 [3, num_classes], in the order of ClassCounts.

  Args:
    class_indices: the true classes, int64 [B].
    predicted: the predicted classes, int64 [B].
  """
  # tf.math.confusion_matrix makes the same checks. Without them, negative indices would be ignored.
  with tf.control_dependencies([
      tf.debugging.assert_non_negative(class_indices, message='`labels` contains negative values'),
      tf.debugging.assert_less(class_indices, tf.constant(num_classes, tf.int64),
                               message='`labels` out of bound')]):
    class_indices = tf.identity(class_indices)
  ones = tf.ones_like(class_indices)
  is_correct = tf.cast(tf.equal(class_indices, predicted), tf.int64)
  return tf.stack([tf.math.unsorted_segment_sum(values, indices, num_classes)
                   for values, indices in ((is_correct, class_indices), (ones, class_indices),
                                           (ones, predicted))])


def count_confusions(class_indices: tf.Tensor, predicted: tf.Tensor,
                     num_classes: int) -> Tuple[tf.Tensor, tf.Operation]:
  """Counts how often each class is predicted as another class, in a hash table of the pairs.

  Args:
    class_indices: the true classes of a batch, int64 [B].
    predicted: the predicted classes, int64 [B].

  Returns:
    The _MAX_CONFUSIONS most frequent pairs of all batches, and the operation that adds the batch.
    The pairs are int64 [N, 3] with the columns true class, predicted class and number of examples.
    They are sorted by descending number, then by ascending classes.
  """
  is_wrong = tf.not_equal(class_indices, predicted)
  pairs, _, counts = tf.unique_with_counts(
      tf.boolean_mask(class_indices * num_classes + predicted, is_wrong), tf.int64)
  with tf.device('/cpu:0'):
    table = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64)
    previous = tf.raw_ops.LookupTableFindV2(
        table_handle=table, keys=pairs, default_value=tf.zeros([], tf.int64))
    update = tf.raw_ops.LookupTableInsertV2(
        table_handle=table, keys=pairs, values=previous + counts)
    empty = tf.zeros([0], tf.int64)
    # The initializer empties the table before another evaluation in the same graph.
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, tf.raw_ops.LookupTableImportV2(
        table_handle=table, keys=empty, values=empty))
    pairs, totals = tf.raw_ops.LookupTableExportV2(
        table_handle=table, Tkeys=tf.int64, Tvalues=tf.int64)
    order = tf.argsort(pairs)  # Sorted, so that top_k breaks ties by the lower class indices.
    pairs, totals = tf.gather(pairs, order), tf.gather(totals, order)
    totals, selected = tf.math.top_k(totals, tf.minimum(_MAX_CONFUSIONS, tf.size(totals)))
    pairs = tf.gather(pairs, selected)
    return tf.stack([pairs // num_classes, pairs % num_classes, totals], -1), update


def confusion_metrics(class_indices: tf.Tensor, predicted: tf.Tensor,
                      num_classes: int) -> Dict[str, Tuple[tf.Tensor, tf.Operation]]:
  """Returns the confusion matrix as a metric; for many classes, the most frequent confusions.

  Returns:
    `confusion_matrix`, int64 [num_classes, num_classes], with one row per true class and one column
    per predicted class. If there are more than MAX_CLASSES_OF_MATRIX classes, the dict instead
    contains `confusions`, see count_confusions.
  """
  if num_classes > MAX_CLASSES_OF_MATRIX:
    estimator_patches.omit_from_summary('confusions')
    return {'confusions': count_confusions(class_indices, predicted, num_classes)}
  estimator_patches.omit_from_summary('confusion_matrix')
  return {'confusion_matrix': running_sum(tf.math.confusion_matrix(
      class_indices, predicted, num_classes, dtype=tf.int64), 'confusion_matrix')}


def macro_averages(counts: ClassCounts) -> Dict[str, Tuple[tf.Tensor, tf.Operation]]:
  """Returns the means of precision, recall and F1 over the classes, as metrics without an update.

  A class is omitted if it is neither the true nor the predicted class of any example. As in
  scikit-learn, the precision of a class that is never predicted is 0. So is the recall of a class
  without examples.
  """
  correct, true, predicted = (tf.cast(values, tf.float64) for values in counts)
  num_occurring = tf.math.count_nonzero(true + predicted, dtype=tf.float64)
  return {'macro_' + name: (
      tf.reduce_sum(tf.div_no_nan(correct, count)) / num_occurring, tf.no_op())
          for name, count in (('precision', predicted), ('recall', true),
                              ('f1', (true + predicted) / 2))}


def record_counts(name: str, counts: tf.Tensor) -> None:
  """Records counts over all batches in a collection of the default graph, one for each name.

  Unlike metrics, recorded counts are not part of the result and the log of `Estimator.evaluate`.
  """
  tf.add_to_collection(_RECORDED_PREFIX + name, counts)


def recorded_counts() -> Dict[str, tf.Tensor]:
  """Returns the counts of the default graph by name; {} if the model is not a classifier."""
  return {key[len(_RECORDED_PREFIX):]: tf.get_collection(key)[0]
          for key in tf.get_default_graph().get_all_collection_keys()
          if isinstance(key, str) and key.startswith(_RECORDED_PREFIX)}

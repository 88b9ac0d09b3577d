"""Collects the tensors that hooks fetch in training: loss, accuracy, gradient norm and images.

Collections of the graph contain the tensors. Some of them are computed only in logged steps.
"""

import math
from typing import Any, Dict, List

import tensorflow.compat.v1 as tf

from estimator_train.data import decoding
from estimator_train.model import inputs

# Keys of graph collections. A collection has one tensor for each replica of this process.
_ACCURACIES_KEY = 'estimator_train/replica_accuracies'
_GRADIENT_NORM_KEY = 'estimator_train/gradient_norm'
_PIXELS_KEY = 'estimator_train/example_pixels'
_LABELS_KEY = 'estimator_train/example_labels'
_MAX_IMAGES = 12  # Rows of three or four are complete.


def add_batch_tensors(features: Any, labels: tf.Tensor, outputs: tf.Tensor) -> None:
  """Adds the accuracy on the batch of a replica, and some images of this batch.

  Must be called in each replica after the replica has built its model. If it were called before,
  its operations would change the seeds of the model's random operations.

  Args:
    features: see inputs.split_sample_weights. Images are uint8 or float32 [B, height, width, C]
      with pixel values from 0 to 255. Other features are ignored.
    labels: one-hot [B, num_classes] or class indices [B].
    outputs: [B, num_classes].
  """
  class_indices = labels if labels.shape.ndims == 1 else tf.argmax(labels, -1)
  add_accuracy(class_indices, outputs)
  features, _ = inputs.split_sample_weights(features)
  if decoding.is_image_batch(features):
    # The cast comes first, because TensorFlow cannot slice uint8 on a GPU. Soft placement would
    # copy the whole batch to the CPU.
    tf.add_to_collection(_PIXELS_KEY, tf.cast(features, tf.float32)[:_MAX_IMAGES])
    tf.add_to_collection(_LABELS_KEY, labels[:_MAX_IMAGES])


def add_accuracy(class_indices: tf.Tensor, outputs: tf.Tensor) -> None:
  """Adds the accuracy on the batch of a replica; see add_batch_tensors.

  Args:
    class_indices: the true class indices, [B].
    outputs: [B, num_classes].
  """
  correct = tf.equal(tf.cast(class_indices, tf.int64), tf.argmax(outputs, -1))
  tf.add_to_collection(_ACCURACIES_KEY, tf.reduce_mean(tf.cast(correct, tf.float32)))


def add_gradient_norm(norm: tf.Tensor) -> None:
  """Adds the norm of the gradient over the global batch, which all replicas compute."""
  tf.add_to_collection(_GRADIENT_NORM_KEY, norm)


def training_loss() -> tf.Tensor:
  """Returns the training loss, which is the mean over the global batch."""
  # Estimator adds the loss of the EstimatorSpec to the collection after all other losses.
  return tf.get_collection(tf.GraphKeys.LOSSES)[-1]


def accuracy() -> tf.Tensor:
  """Returns the mean accuracy of the replicas of this process; nan if the data has no classes."""
  accuracies = tf.get_collection(_ACCURACIES_KEY)
  return tf.add_n(accuracies) / len(accuracies) if len(accuracies) > 1 else (
      accuracies or [tf.constant(math.nan)])[0]


def scalars_of_logged_steps() -> Dict[str, tf.Tensor]:
  """Returns the scalars that are computed only in logged steps, by their tags in TensorBoard.

  All workers of a cluster must fetch the scalars in the same steps, because collective operations
  compute them.
  """
  # Each replica has added the same norm, and zip takes the first one.
  return dict(zip(['gradient_norm'], tf.get_collection(_GRADIENT_NORM_KEY)))


def example_images_and_labels() -> List[tf.Tensor]:
  """Returns the first images of the batch and their labels; [] if there are no images.

  The images are float32 [N, height, width, C], with pixel values from 0 to 255. The labels are
  one-hot or mixed [N, num_classes], or class indices [N].
  """
  return tf.get_collection(_PIXELS_KEY)[:1] + tf.get_collection(_LABELS_KEY)[:1]

"""TensorFlow can serialize the collections of the graph of an evaluation."""

import logging

import tensorflow.compat.v1 as tf

from estimator_train.model import confusion_matrix, evaluation_samples


def test_collections_have_only_tensors(caplog):
  logger = logging.getLogger('tensorflow')
  with tf.Graph().as_default() as graph:
    tensor = tf.zeros([2, 3])
    evaluation_samples.add_output_samples('price', tensor, tensor)
    confusion_matrix.record_counts('class_counts', tensor)
    assert confusion_matrix.recorded_counts() == {'class_counts': tensor}
    (sampled,) = evaluation_samples.take_sampled_tensors()
    assert sampled.output_name == 'price' and evaluation_samples.take_sampled_tensors() == []
    logger.addHandler(caplog.handler)
    try:
      tf.train.export_meta_graph(graph=graph)
    finally:
      logger.removeHandler(caplog.handler)
  assert caplog.messages == []

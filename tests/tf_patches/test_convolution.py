"""Gradients of single-channel convolutions with padded images."""

import tensorflow.compat.v1 as tf
import training_runs

from estimator_train.system import machine

layers = tf.keras.layers


def of_convolutions(image_shape, num_classes):
  """The first and the third convolution have a single channel; so has the fourth, in float64."""
  return tf.keras.Sequential([
      layers.Conv2D(4, (3, 2), padding='same', activation='tanh', input_shape=image_shape),
      layers.Conv2D(1, 3, activation='tanh'), layers.Conv2D(1, (3, 2), 2, activation='tanh'),
      layers.Lambda(lambda values: tf.cast(values, tf.float64)),
      layers.Conv2D(3, 2, dtype='float64'), layers.Flatten(),
      layers.Lambda(lambda values: tf.cast(values, tf.float32)),
      layers.Dense(num_classes, activation='softmax')])


def test_training_pads_where_it_is_faster_and_trains_as_without(monkeypatch, tmp_path):
  for needs_padding in (False, True):
    folder = tmp_path / str(needs_padding)
    monkeypatch.setattr(machine, 'needs_padded_gradients', lambda needs=needs_padding: needs)
    training_runs.train(folder, dataset='synthetic', image_size=(12, 11), batch_size=8,
                        model=__name__ + ':of_convolutions', train_steps=2, num_cpu_replicas=2)
    graph, = folder.glob('*-2.meta')
    operations = tf.MetaGraphDef.FromString(graph.read_bytes()).graph_def.node
    assert sum(node.op == 'Pad' for node in operations) == 2 * 2 * needs_padding
  training_runs.assert_same_weights(tmp_path / 'False', tmp_path / 'True')

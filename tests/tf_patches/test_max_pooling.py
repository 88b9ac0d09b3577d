"""ReLU is computed after max pooling, with the same results."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import keras_session
from training_runs import variables

import estimator_train
from estimator_train.model import own_graph
from estimator_train.tf_patches import graphs, max_pooling

layers = tf.keras.layers


def make_model():
  """Returns a model with pooling after ReLU, as a function and as a layer, and with dropout."""
  np.random.seed(1)  # Keras draws the seeds of dropout from NumPy.
  model = tf.keras.Sequential([
      layers.Conv2D(4, 3, activation='relu', input_shape=(12, 12, 1)), layers.MaxPooling2D(2),
      layers.Dropout(.3), layers.Conv2D(3, 2), layers.BatchNormalization(), layers.ReLU(),
      layers.MaxPooling2D(3, 1, padding='same'), layers.Flatten(),
      layers.Dense(2, activation='softmax')])
  model.compile('adam', 'sparse_categorical_crossentropy', ['accuracy'])
  return model


def make_batches():
  random = np.random.RandomState(1)
  images = random.randint(0, 3, (8, 12, 12, 1)).astype(np.float32)  # Many values are equal.
  return tf.data.Dataset.from_tensors((images, random.randint(0, 2, 8))).repeat(4)


def test_training_is_the_same_in_both_orders(tmp_path, monkeypatch):
  results, subgraphs = [], []
  change = max_pooling.pool_before_relu

  def record_change(subgraph, names):
    subgraphs.append(change(subgraph, names))
    return subgraphs[-1]

  for name, function in (('changed', record_change), ('unchanged', lambda subgraph, _: subgraph)):
    monkeypatch.setattr(own_graph.max_pooling, 'pool_before_relu', function)
    with keras_session():
      estimator = estimator_train.convert(make_model(), model_dir=str(tmp_path / name), seed=3)
      estimator.train(make_batches, steps=4)
      results.append(dict(variables(tmp_path / name), **estimator.evaluate(make_batches)))
  np.testing.assert_equal(*results)
  in_training, in_evaluation = ([
      (node.op, subgraph.nodes[graphs.operation_name(node.input[0])].op)
      for node in subgraph.nodes.values() if node.op in ('MaxPool', 'Relu')]
                                for subgraph in subgraphs)
  assert [op for op, _ in in_training] == ['MaxPool', 'Relu'] * 2
  assert all(source == 'MaxPool' for op, source in in_training if op == 'Relu')
  # Without gradients, a convolution and its ReLU are one operation.
  assert [op for op, _ in in_evaluation] == ['Relu', 'MaxPool'] * 2


@pytest.mark.parametrize('case, is_changed', [
    ('pooled', True), ('fetched', False), ('used twice', False), ('without gradient', False),
    ('relu6', False), ('pooled twice', False)])
def test_other_uses_of_relu_stay_as_they_are(case, is_changed):
  with tf.Graph().as_default() as graph:
    x = tf.Variable(np.random.RandomState(3).randint(-3, 4, (2, 7, 7, 2)).astype(np.float32))
    relu = (tf.nn.relu6 if case == 'relu6' else tf.nn.relu)(x)
    pooled = tf.nn.max_pool(relu, 3, 2, 'SAME')
    loss = tf.reduce_sum(pooled * [1., 2.])
    if case == 'used twice':
      loss += tf.reduce_sum(relu)
    if case == 'pooled twice':
      loss += tf.reduce_sum(tf.nn.max_pool(relu, 2, 2, 'VALID') ** 2)
    fetches = [loss] if case == 'without gradient' else [loss, *tf.gradients(loss, x)]
    fetches += [relu] if case == 'fetched' else []
    subgraph = graphs.extract_subgraph(graph, [fetch.op for fetch in fetches], {x.op.name}, {})
    changed = max_pooling.pool_before_relu(subgraph, {fetch.op.name for fetch in fetches})
    assert (changed.nodes != subgraph.nodes) == is_changed
    assert list(changed.nodes) == list(subgraph.nodes)
    imported = graphs.ImportedSubgraph(
        changed, {x.op.name + ':0': tf.convert_to_tensor(x)}, [fetch.name for fetch in fetches])
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      for expected, found in session.run([(fetch, imported.find_counterparts(fetch))
                                          for fetch in fetches]):
        np.testing.assert_array_equal(found, expected)

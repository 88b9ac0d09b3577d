"""Masks of recurrent layers are stored as float16, with the same results."""

import numpy as np
import tensorflow.compat.v1 as tf
from conftest import keras_session
from training_runs import variables

import estimator_train
from estimator_train.model import own_graph
from estimator_train.tf_patches import boolean_arrays, graphs

layers = tf.keras.layers


def make_model():
  np.random.seed(1)  # Keras draws the seeds of dropout from NumPy.
  model = tf.keras.Sequential([
      layers.Masking(input_shape=(5, 3)), layers.LSTM(3, recurrent_dropout=.2), layers.Dense(1)])
  model.compile(tf.keras.optimizers.SGD(.5, .9), 'mse', ['mae'])
  return model


def make_batches():
  random = np.random.RandomState(1)
  x = random.uniform(size=(8, 5, 3)).astype(np.float32)
  x[np.arange(5) >= random.randint(1, 6, (8, 1))] = 0  # Padding.
  return tf.data.Dataset.from_tensors((x, x.sum((1, 2)))).repeat(3)


def test_training_with_masks_is_the_same_on_hosts_with_gpus(tmp_path, monkeypatch):
  results, kinds = [], []
  extract = own_graph.boolean_arrays.store_as_float16
  monkeypatch.setattr(own_graph.boolean_arrays, 'store_as_float16',
                      lambda *arguments: kinds.append(extract(*arguments)) or kinds[-1])
  for name, gpus in (('cpu', []), ('gpu', ['GPU'])):
    monkeypatch.setattr(tf.config.experimental, 'list_physical_devices',
                        lambda kind, gpus=gpus: gpus)
    with keras_session():
      estimator = estimator_train.convert(make_model(), model_dir=str(tmp_path / name), seed=3)
      estimator.train(make_batches, steps=3)
      results.append((variables(tmp_path / name), estimator.evaluate(make_batches)))
  (expected, metrics), (found, other_metrics) = results
  assert expected.keys() == found.keys() and metrics == other_metrics
  assert all((expected[name] == found[name]).all() for name in expected)
  assert len(kinds) == 2
  for subgraph in kinds:
    types = {node.op: {value.type for value in node.attr.values()}
             for node in subgraph.nodes.values() if node.op.startswith(('TensorArray', 'Stack'))}
    assert 'TensorArrayReadV3' in types
    assert all(tf.bool.as_datatype_enum not in found for found in types.values()), types


def test_other_uses_of_arrays_of_booleans_stay_as_they_are():
  with tf.Graph().as_default() as graph:
    array = tf.TensorArray(tf.bool, 2).unstack([[True], [False]])
    read, joined = array.read(1), array.concat()
    negated = tf.logical_not(read)
  for fetch, operations, is_changed in (
      (negated, [negated.op], True), (negated, [negated.op, joined.op], False),
      (read, [read.op], False)):
    subgraph = graphs.extract_subgraph(graph, operations, set(), {})
    stored = boolean_arrays.store_as_float16(subgraph, {fetch.op.name})
    assert (stored is not subgraph) == is_changed
    with tf.Graph().as_default(), tf.Session() as session:
      imported = graphs.ImportedSubgraph(stored, {}, [fetch.name])
      assert session.run(imported.find_counterparts(fetch)).tolist() == [fetch is negated]

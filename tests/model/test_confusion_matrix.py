"""Metrics of classes, beside NumPy, and what evaluations with many classes leave out."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from conftest import keras_session

from estimator_train import convert
from estimator_train.model import confusion_matrix

layers = tf.keras.layers


def expected_metrics(true, predicted, num_classes):
  """Returns the metrics and the confusion matrix of the true and the predicted classes."""
  matrix = np.zeros([num_classes, num_classes], int)
  np.add.at(matrix, (true, predicted), 1)
  correct, rows, columns = np.diag(matrix), matrix.sum(1), matrix.sum(0)
  occurring = rows + columns > 0

  def macro(denominator):
    return np.mean([hits / count if count else 0.
                    for hits, count in zip(correct[occurring], denominator[occurring])])

  return {'accuracy': np.mean(true == predicted), 'macro_precision': macro(columns),
          'macro_recall': macro(rows), 'macro_f1': macro((rows + columns) / 2)}, matrix


def most_frequent_confusions(matrix):
  pairs = np.argwhere(matrix * (1 - np.eye(len(matrix), dtype=int)))
  return sorted(([*pair, matrix[tuple(pair)]] for pair in pairs.tolist()),
                key=lambda row: (-row[2], row))[:100]


@pytest.mark.parametrize('num_classes, is_one_hot', [
    (2, False), (12, True), (100, False), (101, False), (101, True), (20000, False)])
def test_metrics_beside_numpy(tmp_path, own_graph, num_classes, is_one_hot):
  """Of 50 examples in batches of 16, some of whose classes are never predicted."""
  random = np.random.RandomState(num_classes)
  true, features = random.randint(0, num_classes, (2, 50))
  features[::3] = true[::3]
  model = tf.keras.Sequential([
      layers.Embedding(num_classes, 8, 'normal', input_length=1), layers.Flatten(),
      layers.Dense(num_classes, 'softmax')])
  model.compile(tf.train.GradientDescentOptimizer(0.),
                ('' if is_one_hot else 'sparse_') + 'categorical_crossentropy')
  labels = np.eye(num_classes)[true] if is_one_hot else true
  estimator = convert(model, model_dir=str(tmp_path))

  def input_fn():
    return tf.data.Dataset.from_tensor_slices((features[:, np.newaxis], labels)).batch(16)

  estimator.train(input_fn, steps=1)
  probabilities = np.stack([next(iter(outputs.values()))
                            for outputs in estimator.predict(input_fn)])
  expected, matrix = expected_metrics(true, probabilities.argmax(-1), num_classes)
  found = [estimator.evaluate(input_fn) for _ in range(2)][-1]
  for name, value in expected.items():
    assert found[name] == pytest.approx(value, rel=1e-12), name
  assert found['examples'] == 50 and found['average_loss'] == pytest.approx(
      -np.log(probabilities[np.arange(50), true]).mean(), rel=1e-5)
  if num_classes <= 100:
    assert found['confusion_matrix'].dtype == np.int64 and 'confusions' not in found
    np.testing.assert_array_equal(found['confusion_matrix'], matrix)
  else:
    assert 'confusion_matrix' not in found
    assert found['confusions'].tolist() == most_frequent_confusions(matrix)
  summaries = [value for event in training_runs.events(tmp_path / 'eval')
               for value in event.summary.value]
  assert 'macro_f1' in [value.tag for value in summaries]
  assert max(value.ByteSize() for value in summaries) < 1000


def test_most_frequent_confusions_of_many_batches():
  """Equal numbers are in the order of the classes; each evaluation counts from 0."""
  random = np.random.RandomState(0)
  true, predicted = (random.geometric(.05, 4000) for _ in range(2))
  matrix = expected_metrics(true, predicted, 300)[1]
  with tf.Graph().as_default() as graph, tf.Session() as session:
    batch = [tf.placeholder(tf.int64, [None]) for _ in range(2)]
    confusions, update = confusion_matrix.count_confusions(*batch, 300)
    initialize = tf.tables_initializer()
    graph.finalize()
    for _ in range(2):
      session.run(initialize)
      assert session.run(confusions).shape == (0, 3)
      for start in range(0, 4000, 70):
        session.run(update, dict(zip(batch, (true[start:start + 70], predicted[start:start + 70]))))
      assert session.run(confusions).tolist() == most_frequent_confusions(matrix)


def test_the_size_of_a_graph_of_the_metrics():
  """No tensor has a number for each pair of classes."""
  with tf.Graph().as_default() as graph:
    indices = tf.placeholder(tf.int64, [None])
    confusion_matrix.count_per_class(indices, indices, 10 ** 5)
    confusion_matrix.count_confusions(indices, indices, 10 ** 5)
    assert all(tensor.shape.num_elements() in (None, 1, 10 ** 5, 3 * 10 ** 5)
               or tensor.shape.num_elements() < 10
               for operation in graph.get_operations() for tensor in operation.outputs)


@pytest.mark.parametrize('index, message', [(-1, 'negative values'), (5, 'out of bound')])
def test_labels_out_of_range(index, message):
  """They are an error as in the confusion matrix, instead of not being counted."""
  with tf.Graph().as_default(), tf.Session() as session:
    indices = tf.placeholder(tf.int64, [None])
    counts = confusion_matrix.count_per_class(indices, tf.zeros_like(indices), 5)
    assert session.run(counts, {indices: [0, 4, 4]}).tolist() == [
        [1, 0, 0, 0, 0], [1, 0, 0, 0, 2], [3, 0, 0, 0, 0]]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
      session.run(counts, {indices: [0, index]})


@pytest.mark.page
def test_the_program_with_more_classes_than_the_limit(copied_run, run_well, monkeypatch):
  """The most frequent confusions take the place of the confusion matrix, also on the page."""
  def evaluate():
    with keras_session():
      done = run_well('--mode=evaluate', '--model_dir={}'.format(copied_run), '--report_page')
    page = (copied_run / 'report' / 'index.html').read_text(encoding='utf-8')
    return json.loads((copied_run / 'evaluation.json').read_text()), page, done.result

  expected, page, result = evaluate()
  matrix, names = np.array(expected.pop('confusion_matrix')), list(expected['per_class'])
  assert matrix.shape == (10, 10) and len(names) == 10
  assert 'class_counts' not in expected
  bins, examples = expected['calibration_bins'], expected['examples']
  assert len(bins) == 15 and sum(each['examples'] for each in bins) == examples
  assert expected['calibration_error'] == pytest.approx(sum(
      each['examples'] / examples * abs(each['accuracy'] - each['confidence'])
      for each in bins if each['examples']))
  assert ('over the confidence' in page) == ('Confusion matrix of 10 classes' in page)
  assert 'confusion-matrix' not in page or 'Confusion matrix of 10 classes' in page
  monkeypatch.setattr(confusion_matrix, 'MAX_CLASSES_OF_MATRIX', 9)
  found, page, result_without = evaluate()
  assert found.pop('confusions') == [
      {'label': names[true], 'predicted': names[predicted], 'examples': examples}
      for true, predicted, examples in most_frequent_confusions(matrix)]
  assert found == expected and result_without == result
  assert 'Metrics per class' in page and 'Most frequent mistakes' in page
  assert 'Confusion matrix of' not in page
  assert not (copied_run / 'report' / 'confusion-matrix.png').exists()

"""Training, evaluation, prediction and export of models without images, end to end."""

import csv
import importlib
import json

import numpy as np
import own_examples
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, write_records
from test_tfrecords import assert_same_weights
from test_training_modes import fails

import estimator_train

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow

TWO = ['--dataset=own_examples:two_inputs', '--model=own_examples:two_outputs', '--batch_size=8']
WEIGHTED = ['--dataset=own_examples:weighted', '--model=own_examples:one_output', '--batch_size=8']
TEXT = ['--dataset=own_examples:text', '--model=own_examples:word_classifier', '--batch_size=8']
WORDS = ['--dataset=own_examples:sequences', '--model=own_examples:next_word', '--batch_size=8']


@pytest.fixture
def run(run_program, tmp_path):
  def run_in(folder, *arguments):
    done = run_program('--model_dir={}'.format(tmp_path / folder), *arguments)
    assert done.code == 0, done.err
    return done
  return run_in


def report(folder):
  return json.loads((folder / 'evaluation.json').read_text())


@pytest.mark.parametrize('flags', [TWO, WEIGHTED, WORDS, TEXT], ids=lambda flags: flags[0])
def test_resumed_and_on_two_replicas(run, tmp_path, flags):
  whole = run('whole', '--train_epochs=3', *flags).result
  assert whole['examples'] == own_examples.NUM_EXAMPLES and whole['global_step'] == 14
  run('parts', '--train_steps=5', *flags)
  run('parts', '--train_steps=14', *flags)
  assert_same_weights(tmp_path / 'parts', tmp_path / 'whole')
  two = run('two', '--train_epochs=3', '--num_cpu_replicas=2', *flags)
  ours, other = report(tmp_path / 'two'), report(tmp_path / 'whole')
  assert ours.keys() == other.keys()
  for name, value in ours.items():
    if isinstance(value, float):
      assert value == pytest.approx(other[name], rel=2e-3), name
  assert ('accuracy' in two.err) == (flags is TEXT)
  assert (tmp_path / 'two' / 'labels.txt').exists() == (flags is TEXT)
  again = run('whole', '--mode=evaluate', *flags[:2], '--batch_size=5').result
  assert again['average_loss'] == pytest.approx(whole['average_loss'], rel=1e-6)


@pytest.mark.page
def test_the_keys_of_the_evaluation(run, tmp_path):
  result = run('run', '--train_steps=3', *TWO).result
  evaluation = report(tmp_path / 'run')
  assert list(evaluation)[:3] == ['loss', 'average_loss', 'examples']
  metrics = {'kind_acc', 'kind_loss', 'price_loss', 'price_mean_absolute_error'}
  assert metrics <= set(evaluation) and metrics <= set(result)
  assert evaluation['loss'] == pytest.approx(
      2 * evaluation['price_loss'] + .5 * evaluation['kind_loss']
      + evaluation['regularization_loss'])
  assert 'accuracy' not in evaluation and 'confusion_matrix' not in evaluation
  page = tmp_path / 'run' / 'report' / 'index.html'
  if page.exists():  # The extra `report` is installed.
    text = page.read_text()
    assert 'Average loss' in text and '<h3>kind</h3>' in text and '<h3>price</h3>' in text
    assert (page.parent / 'output-0-values.png').exists()
  outputs = json.loads((tmp_path / 'run' / 'report' / 'outputs.json').read_text())
  assert list(outputs) == ['price'] and outputs['price']['examples'] == own_examples.NUM_EXAMPLES
  np.testing.assert_allclose(outputs['price']['true'], own_examples._numbers()[2], rtol=1e-5)


def test_a_mean_over_batches_is_named(run, tmp_path):
  done = run('run', '--train_steps=3', '--eval_every_steps=1', *WEIGHTED)
  assert done.err.count('mean_error is computed once per batch') == 1
  assert report(tmp_path / 'run')['batch_means'] == ['mean_error']


@pytest.mark.parametrize('metric, mode, is_max', [
    ('kind_acc', 'auto', True), ('price_loss', 'auto', False),
    ('price_mean_absolute_error', 'auto', False), ('average_loss', 'max', True)])
def test_the_best_by_any_metric(run, tmp_path, metric, mode, is_max):
  done = run('run', '--train_steps=12', '--eval_every_steps=2', '--best_metric=' + metric,
             '--best_mode=' + mode, *TWO)
  values = []
  for event_file in (tmp_path / 'run' / 'eval').iterdir():
    for event in tf.train.summary_iterator(str(event_file)):
      values += [(value.simple_value, -event.step) for value in event.summary.value
                 if value.tag == metric]
  best = max(values) if is_max else min((value, -step) for value, step in values)
  recorded = json.loads((tmp_path / 'run' / 'best' / 'best.json').read_text())
  assert recorded['metric'] == metric and recorded['value'] == pytest.approx(best[0])
  assert recorded['global_step'] == abs(best[1]) == done.result['best']['global_step']
  assert 'best        {}'.format(metric.replace('_', ' ')) in done.err


def test_early_stopping_by_any_metric(run):
  done = run('run', '--train_steps=90', '--eval_every_steps=10', '--early_stopping_steps=20',
             '--best_metric=price_loss', '--best_mode=max', *TWO)
  assert done.result['stopped_early'].startswith('no improvement in price loss for 20 steps')
  assert done.result['global_step'] < 90


def test_predictions(run, tmp_path):
  run('run', '--train_steps=3', *TWO)
  flags = ['--mode=predict', '--flagfile={}'.format(tmp_path / 'run' / 'flags.txt')]
  lines = [json.loads(line) for line in run('run', *flags).out.splitlines()]
  assert len(lines) == own_examples.NUM_EXAMPLES + 1 and lines[-1]['predicted'] == len(lines) - 1
  assert list(lines[0]) == ['example', 'price', 'kind']
  assert [line['example'] for line in lines[:-1]] == list(range(own_examples.NUM_EXAMPLES))
  assert isinstance(lines[0]['price'], float) and sum(lines[0]['kind']) == pytest.approx(1)
  run('run', *flags, '--output={}'.format(tmp_path / 'out.csv'), '--batch_size=5')
  with open(str(tmp_path / 'out.csv'), newline='') as file:
    rows = list(csv.DictReader(file))
  assert list(rows[0]) == ['example', 'price', 'kind_0', 'kind_1', 'error']
  for row, line in zip(rows, lines):
    np.testing.assert_allclose([float(row['price']), float(row['kind_1'])],
                               [line['price'], line['kind'][1]], rtol=1e-4, atol=1e-6)


def test_predictions_from_python(run, tmp_path):
  run('run', '--train_steps=2', *TWO)
  settings = estimator_train.Settings(
      dataset='own_examples:two_inputs', model='own_examples:two_outputs', batch_size=8,
      model_dir=str(tmp_path / 'run'))
  first, *rest = estimator_train.predict(settings)
  assert list(first) == ['example', 'price', 'kind'] and len(rest) == own_examples.NUM_EXAMPLES - 1
  assert estimator_train.evaluate(settings)['examples'] == own_examples.NUM_EXAMPLES


def test_cached_in_memory(run, tmp_path):
  run('plain', '--train_steps=12', *TWO)
  run('cached', '--train_steps=12', '--cache=memory', *TWO)
  assert_same_weights(tmp_path / 'cached', tmp_path / 'plain')


def test_predictions_of_classes_and_sequences(run):
  run('text', '--train_steps=3', *TEXT)
  first = json.loads(run('text', '--mode=predict', *TEXT).out.splitlines()[0])
  assert list(first) == ['example', 'label', 'probability', 'top'] and first['label'] in (
      'low', 'high')
  trained = run('words', '--train_steps=3', *WORDS)
  assert trained.err.count('Keras 3 cannot load model.h5: '
                           'hard_sigmoid of lstm has another slope in Keras 3') == 1
  first = json.loads(run('words', '--mode=predict', *WORDS).out.splitlines()[0])
  assert np.array(first['dense']).shape == (5, own_examples.WORDS)


@pytest.fixture
def records(tmp_path, monkeypatch):
  for name, count in (('train', 12), ('new', 5)):
    write_records(tmp_path / 'data' / name, [tf.train.Example(features=tf.train.Features(feature={
        'numbers': tf.train.Feature(float_list=tf.train.FloatList(value=[number, 1, 2])),
        'price': tf.train.Feature(float_list=tf.train.FloatList(value=[number])),
    })).SerializeToString() for number in range(count)])
  monkeypatch.setenv(own_examples.FOLDER_VARIABLE, str(tmp_path / 'data'))
  return tmp_path / 'data'


def test_predictions_of_records(run, run_program, records, tmp_path):
  flags = ['--dataset=own_examples:records', '--model=own_examples:one_output', '--batch_size=4']
  run('run', '--train_epochs=2', *flags)
  (records / 'train').unlink()  # Predictions need only the new records.
  lines = run('run', '--mode=predict', '--input={}'.format(records / 'new'), *flags)
  lines = [json.loads(line) for line in lines.out.splitlines()]
  assert [line['file'] for line in lines[:-1]] == [
      '{}:{}'.format(records / 'new', index) for index in range(5)]
  assert lines[-1]['predicted'] == 5
  assert fails(run_program('--mode=predict', '--input={}'.format(records / 'none'),
                           '--model_dir={}'.format(tmp_path / 'run'), *flags), 'no file')


@pytest.mark.parametrize('flags, inputs', [
    (TWO, {'numbers': [.1, .2, .3], 'words': [1, 2, 3, 4, 5]}),
    # Without an InputLayer, the input of an Embedding has the dtype float32.
    (WORDS, {'embedding_input': [1., 2., 3., 4., 5.]}), (TEXT, {'ids': [1, 2, 3, 4, 5]})],
                         ids=lambda value: value[0] if isinstance(value, list) else '')
def test_exported_signatures(run, tmp_path, flags, inputs):
  run('run', '--train_steps=2', *flags)
  result = run('run', '--mode=export', '--export_dir={}'.format(tmp_path / 'export'),
               *flags).result
  assert result['signatures'] == ['serving_default', 'examples']
  record = tf.train.Example(features=tf.train.Features(feature={
      name: tf.train.Feature(float_list=tf.train.FloatList(value=values))
      if isinstance(values[0], float) else
      tf.train.Feature(int64_list=tf.train.Int64List(value=values))
      for name, values in inputs.items()})).SerializeToString()
  with tf.Graph().as_default(), tf.Session() as session:
    loaded = tf.saved_model.load(session, ['serve'], result['path'])
    tensors, parsed = (loaded.signature_def[name] for name in result['signatures'])
    assert set(tensors.inputs) == set(inputs) and set(tensors.outputs) == set(parsed.outputs)
    by_tensor = session.run(
        {name: info.name for name, info in tensors.outputs.items()},
        {tensors.inputs[name].name: [values] for name, values in inputs.items()})
    by_record = session.run({name: info.name for name, info in parsed.outputs.items()},
                            {parsed.inputs['examples'].name: [record]})
  expected = {'probabilities', 'labels', 'top_probabilities', 'top_labels'} if flags is TEXT else {
      'price', 'kind'} if flags is TWO else {'dense'}
  assert set(by_tensor) == expected
  for name, value in by_tensor.items():
    if value.dtype == object:
      assert value.tolist() == by_record[name].tolist()
    else:
      np.testing.assert_allclose(value, by_record[name], rtol=1e-5)


def test_exported_feature_columns(run, tmp_path, monkeypatch):
  """The SavedModel contains the vocabulary, and initializes its table."""
  monkeypatch.syspath_prepend(str(ROOT))
  flags = ['--dataset=examples.tabular:dataset', '--model=examples.tabular:model']
  run('run', '--train_steps=2', *flags)
  result = run('run', '--mode=export', '--export_dir={}'.format(tmp_path / 'export'), *flags).result
  first = json.loads(run('run', '--mode=predict', *flags).out.splitlines()[0])
  features, _ = importlib.import_module('examples.tabular').read_table(2, 1000)
  with tf.Graph().as_default(), tf.Session() as session:
    loaded = tf.saved_model.load(session, ['serve'], result['path']).signature_def[
        'serving_default']
    price = session.run(loaded.outputs['price'].name, {
        loaded.inputs[name].name: values[:1] for name, values in features.items()})
  assert price[0, 0] == pytest.approx(first['price'], rel=1e-5)


def test_one_weight_for_all_outputs(run, tmp_path):
  """Examples of weight 0 do not count; Keras would reject a single tensor of weights."""
  flags = TWO[1:] + ['--train_steps=2']
  run('some', '--dataset=own_examples:half_weighted', *flags)
  evaluation = report(tmp_path / 'some')
  run('some', '--mode=evaluate', '--dataset=own_examples:first_half', *flags)
  half = report(tmp_path / 'some')
  assert evaluation['examples'] == own_examples.NUM_EXAMPLES and half['examples'] == 18
  assert evaluation['average_loss'] * evaluation['examples'] == pytest.approx(
      half['average_loss'] * half['examples'], rel=1e-5)


def test_h5(run, tmp_path):
  run('run', '--train_steps=2', *TWO)
  with tf.Graph().as_default(), tf.Session():
    model = tf.keras.models.load_model(str(tmp_path / 'run' / 'model.h5'))
    assert model.input_names == ['numbers', 'words'] and model.output_names == ['price', 'kind']


@pytest.mark.parametrize('flags, message', [
    (['--model=own_examples:not_compiled'], 'a model for examples without classes must be compiled:'
     ' --model=own_examples:not_compiled is not compiled: call model.compile'),
    (['--model=fashion_cnn'], '--model=fashion_cnn requires images: --dataset=own_examples:weighted'
     ' has image_shape=None'),
    (['--class_weights=balanced'], '--class_weights=balanced requires classes: --dataset=own_exa'),
    (['--cache_features'], '--cache_features requires images'),
    (['--weights=imagenet'], 'there are no ImageNet weights for this model'),
    (['--best_metric=accuracy'], '--best_metric must be a metric of the evaluation: --best_metric='
     'accuracy: choose from average_loss, loss, mean_error, root_mean_squared_error'),
    (['--stop_at_accuracy=.5', '--eval_every_steps=1'], '--stop_at_accuracy requires the metric'),
    (['--dataset=own_examples:text'], 'must have one output, with a number per class'),
    (['--dataset=own_examples:arrays'], 'examples that are not images require a function that '
     'makes them: --dataset=own_examples:arrays: train is ArraySplit with image_shape=None'),
    (['--dataset=own_examples:no_classes'], 'name each class once; labels=() requires image'),
    (['--mode=input_benchmark'], '--mode=input_benchmark requires images'),
    (['--mode=scaling', '--train_steps=20'], '--mode=scaling requires images'),
    (['--mode=audit'], '--mode=audit requires a data set of image files or of images in TFRecords'),
    (['--dataset=own_examples:of_other_names', '--model=own_examples:two_outputs'],
     'the features must have the names of the inputs of the model: --dataset=own_examples:of_other_'
     'names: number, words, expected numbers, words: rename them'),
    (['--dataset=own_examples:of_other_labels', '--model=own_examples:two_outputs'],
     'the labels must have the names of the outputs of the model: --dataset=own_examples:of_other_'
     'labels: kind, prices, expected kind, price'),
    (['--dataset=own_examples:two_inputs'], 'the features must have the names of the inputs'),
    (['--model=own_examples:two_outputs'], 'there must be features for each input of the model: '
     '--dataset=own_examples:weighted: 1 for numbers, words: give a tuple'),
    (['--dataset=own_examples:in_batches'], 'the features do not fit the model: --dataset=own_exam'
     'ples:in_batches: dense_input is float32 (?, ?, 3), expected float32 (?, 3): change the'),
    (['--dataset=own_examples:of_wide_labels'], 'the labels do not fit the model: --dataset=own_exa'
     'mples:of_wide_labels: dense_1 is float32 (?, 3), expected float32 (?, 1)'),
    (['--dataset=own_examples:of_names'], 'the features do not fit the model: --dataset=own_examp'
     'les:of_names: dense_input is string (?, 3), expected float32 (?, 3)'),
    (['--dataset=own_examples:of_a_third_kind', '--model=own_examples:two_outputs'],
     'the model cannot process an example: --dataset=own_examples:of_a_third_kind (Received a '
     'label value of 2 which is outside the valid range of [0, 2)'),
    (['--best_metric=median', '--model=own_examples:with_median'],
     '--best_mode is required for this --best_metric: --best_metric=median'),
])
def test_what_cannot_be(run_program, tmp_path, flags, message):
  assert fails(run_program('--train_steps=2', '--model_dir={}'.format(tmp_path), *WEIGHTED, *flags),
               message)

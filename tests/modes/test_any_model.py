"""Training, evaluation, prediction and export of models without images, end to end."""

import csv
import functools
import json

import numpy as np
import own_examples
import pytest
import tensorflow.compat.v1 as tf
from conftest import write_records
from mode_runs import fails
from training_runs import assert_same_weights, scalars

from estimator_train import __main__ as program

TWO = ('--dataset=own_examples:two_inputs', '--model=own_examples:two_outputs', '--batch_size=8')
WEIGHTED = ('--dataset=own_examples:weighted', '--model=own_examples:one_output', '--batch_size=8')
TEXT = ('--dataset=own_examples:text', '--model=own_examples:word_classifier', '--batch_size=8')
WORDS = ('--dataset=own_examples:sequences', '--model=own_examples:next_word', '--batch_size=8')


@pytest.fixture
def run(run_well, tmp_path):
  return lambda folder, *arguments: run_well('--model_dir', tmp_path / folder, *arguments)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """Returns the folder of three steps by some flags, which are trained once."""
  @functools.lru_cache(None)
  def train(flags):
    folder = tmp_path_factory.mktemp('trained')
    assert program.main(['--model_dir={}'.format(folder), '--train_steps=3', '--noreport_page',
                         *flags]) == 0
    return folder

  return train


def report(folder):
  return json.loads((folder / 'evaluation.json').read_text())


def predictions(done):
  return [json.loads(line) for line in done.out.splitlines()]


@pytest.mark.parametrize('flags', [
    TWO, TEXT, pytest.param(WORDS, marks=pytest.mark.slow)], ids=lambda flags: flags[0])
def test_resumed_and_on_two_replicas(run, tmp_path, flags):
  whole = run('whole', '--train_epochs=3', *flags).result
  assert whole['examples'] == own_examples.NUM_EXAMPLES and whole['global_step'] == 14
  run('parts', '--mode=train', '--train_steps=5', *flags)
  run('parts', '--mode=train', '--train_steps=14', *flags)
  assert_same_weights(tmp_path / 'parts', tmp_path / 'whole')
  two = run('two', '--train_epochs=3', '--num_cpu_replicas=2', *flags)
  ours, other = ({name: value for name, value in report(tmp_path / folder).items()
                  if isinstance(value, float)} for folder in ('two', 'whole'))
  assert ours == pytest.approx(other, rel=2e-3)
  assert ('accuracy' in two.err) == (flags is TEXT)
  assert (tmp_path / 'two' / 'labels.txt').exists() == (flags is TEXT)
  again = run('whole', '--mode=evaluate', *flags[:2], '--batch_size=5').result
  assert again['average_loss'] == pytest.approx(whole['average_loss'], rel=1e-6)


def test_the_files_of_a_run(trained):
  folder = trained(TWO)
  evaluation = report(folder)
  assert list(evaluation)[:3] == ['loss', 'average_loss', 'examples']
  assert {'kind_acc', 'kind_loss', 'price_loss', 'price_mean_absolute_error'} <= set(evaluation)
  assert evaluation['loss'] == pytest.approx(
      2 * evaluation['price_loss'] + .5 * evaluation['kind_loss']
      + evaluation['regularization_loss'])
  assert 'accuracy' not in evaluation and 'confusion_matrix' not in evaluation
  outputs = json.loads((folder / 'report' / 'outputs.json').read_text())
  assert not (folder / 'report' / 'samples.json').exists()
  assert list(outputs) == ['price'] and outputs['price']['examples'] == own_examples.NUM_EXAMPLES
  np.testing.assert_allclose(outputs['price']['true'], own_examples._numbers()[2], rtol=1e-5)
  with tf.Graph().as_default(), tf.Session():
    model = tf.keras.models.load_model(str(folder / 'model.h5'))
    assert model.input_names == ['numbers', 'words'] and model.output_names == ['price', 'kind']


def test_the_best_by_any_metric(run, tmp_path):
  for flags, metric, sign in ((TWO, 'kind_acc', 1), (WEIGHTED, 'mean_error', -1)):
    done = run(metric, '--train_steps=8', '--eval_every_steps=2', '--best_metric=' + metric, *flags)
    value, step = max((sign * value, -step) for step, value in scalars(
        tmp_path / metric / 'eval', metric).items())
    recorded = json.loads((tmp_path / metric / 'best' / 'best.json').read_text())
    assert recorded['metric'] == metric and recorded['value'] == pytest.approx(sign * value)
    assert recorded['global_step'] == -step == done.result['best']['global_step']
    assert 'best        {}'.format(metric.replace('_', ' ')) in done.err
  assert done.err.count('mean_error is computed once per batch') == 1
  assert report(tmp_path / metric)['batch_means'] == ['mean_error']


def example(**values):
  """Returns a serialized tf.train.Example of lists of floats or integers."""
  return tf.train.Example(features=tf.train.Features(feature={
      name: tf.train.Feature(float_list=tf.train.FloatList(value=numbers))
      if isinstance(numbers[0], float) else
      tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))
      for name, numbers in values.items()})).SerializeToString()


def test_predictions_of_records(run, run_program, monkeypatch, tmp_path):
  for name, count in (('train', 12), ('new', 5)):
    write_records(tmp_path / name, [example(numbers=[float(number), 1., 2.], price=[float(number)])
                                    for number in range(count)])
  monkeypatch.setenv(own_examples.FOLDER_VARIABLE, str(tmp_path))
  flags = ['--dataset=own_examples:records', '--model=own_examples:one_output', '--batch_size=4']
  run('run', '--train_epochs=2', *flags)
  (tmp_path / 'train').unlink()  # Predictions need only the new records.
  flags += ['--mode=predict', '--model_dir={}'.format(tmp_path / 'run')]
  *lines, last = predictions(run('run', '--input={}'.format(tmp_path / 'new'), *flags))
  assert [line['file'] for line in lines] == [
      '{}:{}'.format(tmp_path / 'new', index) for index in range(5)] and last['predicted'] == 5
  assert fails(run_program('--input={}'.format(tmp_path / 'none'), *flags), 'no file')


def test_predictions_of_examples_and_rows(run, run_program, trained, tmp_path):
  """Those of rows are those of the examples with the same values; a wrong row has a reason."""
  folder = trained(TWO)
  flags = ['--mode=predict', '--flagfile={}'.format(folder / 'flags.txt'), '--batch_size=3']
  *expected, last = predictions(run(folder, *flags))
  assert last['predicted'] == own_examples.NUM_EXAMPLES
  assert [line['example'] for line in expected] == list(range(own_examples.NUM_EXAMPLES))
  assert isinstance(expected[0]['price'], float) and sum(expected[0]['kind']) == pytest.approx(1)
  numbers, words, *_ = own_examples._numbers()
  rows = [{'words': words[index].tolist(), 'other': 'x', 'numbers': numbers[index].tolist()}
          for index in range(4)]
  lines = list(map(json.dumps, rows))
  wrong = [
      ({'words': [1, 2, 3, 4, 5]}, 'numbers: no value'),
      (dict(rows[0], words=[1.5] * 5), 'words: 1.5 is not an integer'),
      (dict(rows[0], words=[1]), 'words: the shape is [1], but the input has [5]'),
      (dict(rows[0], words=[1, 2, 3, 4, 10 ** 6]), 'the model cannot process it: '),
      (dict(rows[0], numbers=['a', 0, 0]), "numbers: 'a' is not a number"),
      ([1], 'a line must be a JSON object')]
  (tmp_path / 'a.jsonl').write_text('\n'.join(
      [lines[0], '', *(json.dumps(row) for row, _ in wrong), '{', *lines[1:]]))
  with open(str(tmp_path / 'b.CSV'), 'w', encoding='utf-8-sig', newline='') as file:
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
  done = run_program('--model_dir', folder, *flags, '--input={}'.format(tmp_path))
  assert done.code == 2 and "7 bad inputs, the first is '{}:1'".format(
      tmp_path / 'a.jsonl') in done.err
  *found, _ = predictions(done)
  assert [line['file'] for line in found] == ['{}:{}'.format(tmp_path / name, index)
                                              for name, count in (('a.jsonl', 11), ('b.CSV', 4))
                                              for index in range(count)]
  for line, (_, reason) in zip(found[1:8], [*wrong, (None, 'Expecting property')]):
    assert reason in line['error']
  for line, same in zip(found[:1] + found[8:], expected[:4] * 2):
    assert line['price'] == pytest.approx(same['price'], rel=1e-4)
    assert line['kind'] == pytest.approx(same['kind'], rel=1e-4)
  (tmp_path / 'd.csv').write_text('numbers,word\n[1],2\n')
  done = run_program('--model_dir', folder, *flags, '--input={0}/d.csv,{0}/b.CSV'.format(tmp_path))
  assert [line.get('error') for line in predictions(done)] == [
      'no column for words (columns: numbers, word): name the columns in the first line',
      *[None] * 5]
  assert fails(run_program('--model_dir', folder, *flags, '--input={}/no.csv'.format(tmp_path)),
               '--input matches no file')


@pytest.mark.parametrize('flags, inputs, outputs', [
    (TWO, {'numbers': [.1, .2, .3], 'words': [1, 2, 3, 4, 5]}, {'price', 'kind'}),
    # Without an InputLayer, the input of an Embedding has the dtype float32.
    pytest.param(WORDS, {'embedding_input': [1., 2., 3., 4., 5.]}, {'dense'},
                 marks=pytest.mark.slow),
    (TEXT, {'ids': [1, 2, 3, 4, 5]},
     {'probabilities', 'labels', 'top_probabilities', 'top_labels'}),
], ids=lambda value: value[0] if isinstance(value, tuple) else '')
def test_exported_signatures(run, trained, tmp_path, flags, inputs, outputs):
  result = run(trained(flags), '--mode=export', '--export_dir={}'.format(tmp_path / 'export'),
               *flags).result
  assert result['signatures'] == ['serving_default', 'examples']
  with tf.Graph().as_default(), tf.Session() as session:
    loaded = tf.saved_model.load(session, ['serve'], result['path'])
    tensors, parsed = (loaded.signature_def[name] for name in result['signatures'])
    assert set(tensors.inputs) == set(inputs) and set(tensors.outputs) == set(parsed.outputs)
    by_tensor = session.run(
        {name: info.name for name, info in tensors.outputs.items()},
        {tensors.inputs[name].name: [values] for name, values in inputs.items()})
    by_record = session.run({name: info.name for name, info in parsed.outputs.items()},
                            {parsed.inputs['examples'].name: [example(**inputs)]})
  assert set(by_tensor) == outputs
  first = predictions(run(trained(flags), '--mode=predict', *flags))[0]
  assert set(first) == {'example'} | (
      {'label', 'probability', 'top'} if flags is TEXT else outputs)
  np.testing.assert_equal(by_tensor, by_record)


def test_what_cannot_be(run_program, tmp_path):
  for flags, message in (
      ('--model=own:not_compiled', 'for examples without classes must be compiled: --model=own_ex'),
      ('--model=fashion_cnn', 'requires images: --dataset=own_examples:weighted has image_shape='),
      ('--class_weights=balanced', '--class_weights=balanced requires classes: --dataset=own_exam'),
      ('--class_sampling=balanced', '--class_sampling=balanced requires classes: --dataset='),
      ('--cache_features', '--cache_features requires images'),
      ('--best_metric=accuracy', '=accuracy: choose from average_loss, loss, mean_error, root_me'),
      ('--best_metric=cosine_proximity', '--best_mode is required for this --best_m'),
      ('--stop_at_accuracy=.5 --eval_every_steps=1', '--stop_at_accuracy requires the metric'),
      ('--dataset=own:text', 'the model does not fit the data set: --model='),
      ('--dataset=own:arrays', 'require a function that makes them: --dataset=own_examples:arrays'),
      ('--dataset=own:of_other_names --model=own:two_outputs', 'features must have the names of '),
      ('--model=own:two_outputs', 'there must be features for each input of the model: --dataset='),
      ('--dataset=own:of_five_numbers', ': dense_input is int32 (?, 5), expected float32 (?, 3):'),
      ('--dataset=own:of_wide_labels', ': dense_1 is float32 (?, 3), expected float32 (?, 1)'),
      ('--dataset=own:of_a_third_kind --model=own:two_outputs', 'model cannot process an example')):
    done = run_program('--train_steps=2', '--model_dir', tmp_path, *WEIGHTED,
                       *flags.replace('own:', 'own_examples:').split())
    assert fails(done, message)

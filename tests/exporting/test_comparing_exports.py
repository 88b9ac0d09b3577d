"""scripts/compare_exports.py compares exports in several libraries with the checkpoint."""

import json
import os
import sys

import h5py
import pytest
from conftest import load_script
from mode_runs import image_flags

from estimator_train.errors import UserError
from estimator_train.exporting import export as exports

TWO_INPUTS = ('--dataset=own_examples:two_inputs', '--model=own_examples:two_outputs')


@pytest.fixture
def compare(run_well, capsys, tmp_path):
  """Trains, and compares the exports; returns exit code, result and error."""
  def run(train_arguments, *arguments):
    model_dir = tmp_path / 'model'
    if not model_dir.exists():
      run_well('--mode=train', '--train_steps=6', '--batch_size=8', '--model_dir', model_dir,
               *train_arguments)
    capsys.readouterr()
    code = load_script('compare_exports').main(
        ['--flagfile={}'.format(model_dir / 'flags.txt'), *arguments])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]) if out else None, err

  return run


def verdicts(result):
  """Returns the verdict of each format and library."""
  return {'{format} {client}'.format(**row).partition(',')[0]: row['verdict']
          for row in result['rows']}


def assert_equal_in_every_library(done, num_rows, inputs, *signatures):
  code, result, _ = done
  assert code == 0 and result['ok'] and len(result['rows']) == num_rows, result['rows']
  assert set(verdicts(result)) == {
      'h5 tf.keras', 'h5 tf_keras', 'h5 Keras', *(name.format(inputs) for name in (
          'tflite{} TensorFlow', 'tflite{} LiteRT', 'onnx{} ONNX Runtime')),
      *map('saved_model {} TensorFlow'.format, ('serving_default', *signatures))}
  assert all(0 <= row['difference'] < 1e-5 for row in result['rows'])


@pytest.mark.slow
def test_two_inputs_in_every_library(compare, clients_python):
  assert_equal_in_every_library(compare(TWO_INPUTS, '--clients=' + clients_python), 12, '',
                                'examples')


@pytest.mark.slow
def test_pictures_in_every_library(compare, clients_python, image_folders):
  """JPEGs of several sizes, after steps that move the statistics of batch norm."""
  assert_equal_in_every_library(compare(
      [*image_flags(image_folders), '--image_size=28,32', '--model=mnist_deep'],
      '--clients=' + clients_python, '--pictures={}/test/*/*.jpeg'.format(image_folders)),
                                14, ' pictures', 'pictures', 'images')


def test_verdicts_of_changed_and_missing_exports(compare, monkeypatch):
  export = exports.export_checkpoint

  def export_with_faults(trained):
    export_format = trained.settings.export.export_format
    if export_format == 'tflite':
      raise UserError('the rule', 'the value', 'the remedy')
    version = export(trained)
    if export_format == 'h5':
      with h5py.File(os.path.join(version['path'], 'model.h5'), 'r+') as file:
        names = []
        file['model_weights'].visit(names.append)
        name, = (name for name in names if name.endswith('price/kernel:0'))
        file['model_weights'][name][:] *= 1.01
    return version

  monkeypatch.setattr(exports, 'export_checkpoint', export_with_faults)
  code, result, _ = compare(TWO_INPUTS)
  assert code == 1 and not result['ok']
  assert verdicts(result) == {
      'saved_model serving_default TensorFlow': 'ok', 'saved_model examples TensorFlow': 'ok',
      'h5 tf.keras': 'failed', 'onnx ONNX Runtime': 'ok',
      'tflite None': 'not exported: the rule: the value: the remedy'}
  for client in ('none/python', sys.executable + '/no', '/bin/false'):
    code, result, err = compare(TWO_INPUTS, '--clients=' + client)
    assert (code, result) == (2, None)
    assert err.splitlines()[-1].startswith('error: ') and client in err.splitlines()[-1]

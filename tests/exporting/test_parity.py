"""The command that compares exports in several clients with the checkpoint."""

import json
import os
import shutil
import sys

import h5py
import numpy as np
import pytest

from estimator_train import __main__ as program
from estimator_train.errors import UserError
from estimator_train.exporting import export as exports, parity, parity_clients
from estimator_train.exporting.parity_jobs import Job

IMAGES = ('--dataset=synthetic', '--image_size=8,8', '--labels=a,b,c', '--model=mnist_dense')
TWO_INPUTS = ('--dataset=own_examples:two_inputs', '--model=own_examples:two_outputs')


@pytest.fixture(scope='module')
def train(tmp_path_factory):
  """Returns the --model_dir of a short run with these flags."""
  def run(*arguments):
    model_dir = tmp_path_factory.mktemp('parity') / 'model'
    assert program.main(['--mode=train', '--train_steps=2', '--batch_size=8',
                         '--model_dir={}'.format(model_dir), *arguments]) == 0
    return model_dir

  return run


@pytest.fixture(scope='module')
def image_model(train):
  return train(*IMAGES)  # The outputs of the model are logits.


@pytest.fixture
def check(capsys, tmp_path, monkeypatch):
  """Compares the exports of a run; returns exit code, standard output and error."""
  monkeypatch.setenv('TMPDIR', str(tmp_path / 'temporary'))
  monkeypatch.setattr('tempfile.tempdir', None)
  (tmp_path / 'temporary').mkdir()

  def run(model_dir, *arguments):
    capsys.readouterr()
    code = parity.main(['--flagfile={}'.format(model_dir / 'flags.txt'), *arguments])
    assert not list((tmp_path / 'temporary').glob('estimator_train-*'))
    out, err = capsys.readouterr()
    return code, out, err

  return run


def verdicts(out):
  """Returns the verdict of each format and client, without the version of Python."""
  result = json.loads(out.splitlines()[-1])
  return {(row['format'], row['client'] and row['client'].partition(',')[0],
           row['version'] and row['version'].split('.')[0]): row['verdict']
          for row in result['rows']}


@pytest.mark.slow
def test_two_inputs_in_every_client(check, train, clients_python):
  code, out, err = check(train(*TWO_INPUTS), '--clients=' + clients_python, '--examples=5')
  result = json.loads(out.splitlines()[-1])
  found = verdicts(out)
  expected = {(name, 'TensorFlow', version) for version in ('1', '2')
              for name in ('saved_model serving_default', 'saved_model examples', 'tflite')}
  expected |= {('h5', 'tf.keras', '1'), ('h5', 'tf_keras', '2'), ('h5', 'Keras', '3'),
               ('tflite', 'LiteRT', '2'), ('onnx', 'ONNX Runtime', '1')}
  assert set(found) == expected and len(result['rows']) == 12
  for row in result['rows']:
    assert row['verdict'] == 'ok' and row['reason'] is None, row
    assert 0 <= row['difference'] < 1e-5 and row['examples'] == 5
  assert code == 0 and result['ok'] and set(found.values()) == {'ok'}
  table = out.splitlines()[:-1]
  assert len(table) == 14 and table[0].split()[1:4] == ['format', '|', 'client']
  assert all(line.startswith('| ') and line.endswith(' |') for line in table)
  assert result['global_step'] == 2 and result['checkpoint'].endswith('model.ckpt-2')


def test_verdicts_of_changed_and_missing_exports(check, image_model, monkeypatch):
  export = exports.export_checkpoint

  def export_with_faults(settings, *given):
    if settings.export_format == 'tflite':
      raise UserError('the rule', 'the value', 'the remedy')
    version = export(settings, *given)
    if settings.export_format == 'h5':
      with h5py.File(os.path.join(version['path'], 'model.h5'), 'r+') as file:
        names = []
        file['model_weights'].visit(names.append)
        name, = (name for name in names if name.endswith('dense/kernel:0'))
        file['model_weights'][name][:] *= 1.001
    return version

  monkeypatch.setattr(exports, 'export_checkpoint', export_with_faults)
  code, out, err = check(image_model)
  result = json.loads(out.splitlines()[-1])
  assert code == 1 and not result['ok']
  assert verdicts(out) == {
      ('saved_model serving_default', 'TensorFlow', '1'): 'ok',
      ('saved_model images', 'TensorFlow', '1'): 'ok', ('h5', 'tf.keras', '1'): 'failed',
      ('tflite', None, None): 'not exported', ('onnx', 'ONNX Runtime', '1'): 'ok'}
  assert 'not exported: the rule: the value: the remedy' in out
  row, = (row for row in result['rows'] if row['verdict'] == 'failed')
  assert row['difference'] > 1e-5 and row['reason'] == 'the difference is greater than 1e-05'


CLIENT = '''#!{python}
import json, os, sys
if len(sys.argv) == 3:  # PYTHON -I SCRIPT
  print(json.dumps({{'python': '3.9.9', 'libraries': ['onnxruntime']}}))
else:
  print('out of luck', file=sys.stderr)
  os.abort()
'''


def test_a_client_that_crashes(tmp_path):
  client = tmp_path / 'python'
  client.write_text(CLIENT.format(python=sys.executable))
  client.chmod(0o755)
  found = parity_clients.find_clients([str(client)])
  assert found[0].libraries[0] == 'tensorflow' and found[1].libraries == ['onnxruntime']
  arrays = {'a': np.zeros([4, 2], np.float32)}
  jobs = [Job('onnx', 'none.onnx', '', arrays, arrays), Job('h5', 'none.h5', '', arrays, arrays)]
  row, = parity_clients.run_clients(found[1:], jobs, str(tmp_path))
  assert row == ('onnx', 'ONNX Runtime, Python 3.9.9', None, 4, None, 'failed',
                 'the client ended with exit code -6: out of luck')


def test_what_is_given_wrong(check, image_model, tmp_path):
  broken = tmp_path / 'broken'
  shutil.copy(shutil.which('false'), str(broken))
  for argument, message in (
      ('--clients=none/python', '--clients must name Pythons: --clients=none/python is not an'),
      ('--clients={}'.format(broken), '--clients must name Pythons with NumPy: '),
      ('--examples=0', '--examples is not a valid number: --examples=0: give a whole number'),
      ('--checkpoint=best', 'checkpoint'),
      ('--no_such_flag=1', 'no_such_flag')):
    code, out, err = check(image_model, argument)
    assert code == 2 and out == ''
    assert err.splitlines()[-1].startswith('error: ') and message in err.splitlines()[-1]

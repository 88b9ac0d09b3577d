"""The user's keras.json, which other programs may need."""

import json
import os
import sys
from unittest import mock

import pytest
from conftest import run_process

from estimator_train.system import keras_config, tensorflow_probe

TRAIN = ('-m', 'estimator_train', '--mode=train', '--dataset=synthetic', '--batch_size=8',
         '--model=own_models:two_layers', '--train_steps=2', '--noreport_page',
         '--distribution_strategy=off')
# The first call of a function imports TensorFlow.
SCRIPT = '''
import sys
import estimator_train

settings = estimator_train.Settings(
    mode='train', dataset='synthetic', model='own_models:two_layers', batch_size=8, train_steps=1,
    report_page=False, model_dir=sys.argv[1])
try:
  estimator_train.train(settings)
except estimator_train.UserError as error:
  sys.exit(str(error))
from tensorflow.keras import backend
print(backend.floatx(), backend.epsilon(), backend.image_data_format())
'''


@pytest.fixture
def keras_json(tmp_path, monkeypatch):
  """Returns a function that writes the file from an object."""
  monkeypatch.setenv('KERAS_HOME', str(tmp_path))
  monkeypatch.setenv('PYTHONPATH', os.pathsep.join(sys.path))
  return lambda value: (tmp_path / 'keras.json').write_text(json.dumps(value))


def test_the_program_does_not_read_the_file(keras_json, tmp_path):
  """Neither valid nor invalid values, such as those of Keras 3, have an effect."""
  losses = []
  for value in ({}, {'floatx': 'float64', 'image_data_format': 'channels_first', 'epsilon': .1},
                {'floatx': 'bfloat16', 'epsilon': 1}, ['float32']):
    keras_json(value)
    done = run_process(sys.executable, *TRAIN, '--model_dir={}'.format(tmp_path / str(len(losses))))
    assert done.returncode == 0, done.stderr
    losses.append(json.loads(done.stdout.splitlines()[-1])['train_loss'])
  assert losses == losses[:1] * 4


def test_tensorflow_is_imported_for_the_doctor_and_to_count_gpus(keras_json):
  keras_json({'floatx': 'bfloat16'})
  assert tensorflow_probe.count_gpus() == 0


def test_the_library_names_an_invalid_file_and_keeps_the_settings(keras_json, tmp_path):
  for value, reason in (({'floatx': 'bfloat16'}, 'AssertionError: assert _floatx in {'),
                        ([], "AttributeError: 'list' object has no attribute 'get')")):
    keras_json(value)
    done = run_process(sys.executable, '-c', SCRIPT, tmp_path / 'run')
    assert done.returncode == 1
    expected = 'Keras of TensorFlow 1.15 must accept its settings: {} ({}'.format(
        tmp_path / 'keras.json', reason)
    assert done.stderr.splitlines()[-1].startswith(expected)
  keras_json({'floatx': 'float64', 'epsilon': .5, 'image_data_format': 'channels_first'})
  done = run_process(sys.executable, '-c', SCRIPT, tmp_path / 'run')
  assert done.stdout == 'float64 0.5 channels_first\n', done.stderr


@pytest.mark.parametrize('variables', [{}, {'KERAS_HOME': 'mine'}])
def test_the_variable_is_restored(variables):
  with mock.patch.dict(os.environ, variables):
    if not variables:
      os.environ.pop('KERAS_HOME', None)
    before = dict(os.environ)
    with pytest.raises(KeyError), keras_config.ignore_keras_json():
      assert os.environ['KERAS_HOME'] == os.devnull
      raise KeyError
    assert dict(os.environ) == before


def test_other_errors_of_the_import_are_not_translated():
  with pytest.raises(ImportError, match='^mine$'), keras_config.translate_errors():
    raise ImportError('mine')

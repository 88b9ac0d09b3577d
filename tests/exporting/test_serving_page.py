"""The requests of docs/serving.md, answered in TensorFlow 2; see serve_documented_requests.py."""

import json
import os
import re
import subprocess

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT
from google.protobuf.internal.decoder import _DecodeVarint

from estimator_train.exporting import serving_warm_up

PAGE = ROOT / 'docs' / 'serving.md'
MODELS = {
    'shapes': ['--dataset=synthetic', '--image_size=2,2', '--labels=circle,square,star',
               '--model=served_models:shapes', '--optimizer=sgd', '--learning_rate=1e-9'],
    'homes': ['--dataset=served_models:homes_data', '--model=served_models:homes']}


def numbers_and_texts(value):
  """Returns the numbers of a JSON value, in order, and the rest with None in their places."""
  if isinstance(value, float):
    return [value], None
  if isinstance(value, dict):
    value = sorted(value.items())
  if not isinstance(value, (list, tuple)):
    return [], value
  parts = [numbers_and_texts(item) for item in value]
  return sum((numbers for numbers, _ in parts), []), [texts for _, texts in parts]


@pytest.mark.slow
def test_the_responses(run_program, tmp_path, clients_python):
  (tmp_path / 'serving').mkdir()
  for name, arguments in MODELS.items():
    done = run_program('--mode=train', '--train_steps=1', '--batch_size=4', '--model_dir',
                       tmp_path / name, '--export_dir', tmp_path / (name + '-exports'), *arguments)
    assert done.code == 0, done.err
    os.rename(done.result['export']['path'], str(tmp_path / 'serving' / name))
  done = subprocess.run(
      [clients_python, '-I', str(ROOT / 'tests' / 'serve_documented_requests.py'), str(PAGE),
       str(tmp_path / 'serving'), str(tmp_path / 'answers.json')],
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=300)
  assert done.returncode == 0, done.stdout
  answers = json.loads((tmp_path / 'answers.json').read_text())
  page = PAGE.read_text(encoding='utf-8')
  assert len(answers['rest']) == page.count(':predict`\n\n```json') == 5
  for request, documented, response in answers['rest']:
    expected, expected_texts = numbers_and_texts(documented)
    numbers, texts = numbers_and_texts(response)
    assert texts == expected_texts, request
    np.testing.assert_allclose(numbers, expected, rtol=0, atol=2e-6, err_msg=request)
  assert answers['warm_up'] == {'shapes': ['serving_default', 'images'],
                                'homes': ['serving_default']}
  assert answers['grpc']['top_labels'] == [['square', 'star', 'circle']]
  # From the weights in served_models.py.
  logits = np.array([0, 1, .5, .25]) @ [[1, 0, -1], [0, 1, 0], [-1, .5, 2], [.5, -.5, 0]]
  np.testing.assert_allclose(answers['grpc']['probabilities'],
                             [np.exp(logits) / np.exp(logits).sum()], rtol=0, atol=1e-6)


def test_the_configuration_names_its_versions():
  """The labels and URLs are of versions that the policy serves."""
  page = PAGE.read_text(encoding='utf-8')
  policy, = re.findall(r'specific \{(.*?)\}', page)
  served = set(re.findall(r'versions: (\d+)', policy))
  assert set(re.findall(r'value: (\d+)', page)) == served
  assert set(re.findall(r'/versions/(\d+)', page)) <= served


def fields(message):
  """Returns the numbers and contents of the fields of a message, each of which has a length."""
  found, position = [], 0
  while position < len(message):
    key, position = _DecodeVarint(message, position)
    length, position = _DecodeVarint(message, position)
    assert key & 7 == 2
    found.append((key >> 3, message[position:position + length]))
    position += length
  return found


def test_warm_up_requests_have_the_fields_of_tensorflow_serving(tmp_path):
  # Lengths of one, two and three bytes, and those where another byte begins.
  contents = {str(length): bytes(length) for length in (5, *range(90, 130), 70000)}
  serving_warm_up.write_warm_up_requests(str(tmp_path), {
      'first': {name: tf.make_tensor_proto([content]) for name, content in contents.items()},
      'second': {'a': tf.make_tensor_proto(0., shape=(1, 5)), 'b': tf.make_tensor_proto([3])},
  })
  path = tmp_path / 'assets.extra' / 'tf_serving_warmup_requests'
  found = {}
  for record in tf.io.tf_record_iterator(str(path)):
    (number, predict_log), = fields(record)
    assert number == 6  # Of PredictionLog.
    (number, request), = fields(predict_log)
    assert number == 1
    (number, spec), *inputs = fields(request)
    assert number == 1 and all(number == 2 for number, _ in inputs)
    found[dict(fields(spec))[3].decode()] = {
        key.decode(): tf.make_ndarray(tf.make_tensor_proto(0).FromString(value)).tolist()
        for (_, key), (_, value) in (fields(entry) for _, entry in inputs)}
  assert found == {'first': {name: [content] for name, content in contents.items()},
                   'second': {'a': [[0.] * 5], 'b': [3]}}

"""The requests of docs/serving.md, answered in TensorFlow 2; see serve_documented_requests.py."""

import json
import os
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, run_process
from google.protobuf.empty_pb2 import Empty

from estimator_train.exporting import saved_model

PAGE = ROOT / 'docs' / 'serving.md'
MODELS = {
    'shapes': ['--dataset=synthetic', '--image_size=2,2', '--labels=circle,square,star',
               '--model=served_models:shapes', '--optimizer=sgd', '--learning_rate=1e-9'],
    'homes': ['--dataset=served_models:homes_data', '--model=served_models:homes']}


def texts_and_numbers(value):
  """Returns the text of a JSON value without its floats, and the floats."""
  parts = re.split(r'(-?\d+\.\d+(?:e-?\d+)?)', json.dumps(value, sort_keys=True))
  return parts[::2], [float(number) for number in parts[1::2]]


@pytest.mark.slow
def test_the_responses(run_well, tmp_path, clients_python):
  (tmp_path / 'serving').mkdir()
  for name, arguments in MODELS.items():
    done = run_well('--mode=train', '--train_steps=1', '--batch_size=4', '--model_dir',
                    tmp_path / name, '--export_dir', tmp_path / (name + '-exports'), *arguments)
    os.rename(done.result['export']['path'], str(tmp_path / 'serving' / name))
  done = run_process(clients_python, '-I', 'tests/serve_documented_requests.py', PAGE,
                     tmp_path / 'serving')
  assert done.returncode == 0, done.stderr
  answers = json.loads(done.stdout.splitlines()[-1])
  page = PAGE.read_text(encoding='utf-8')
  assert len(answers['rest']) == page.count(':predict`\n\n```json') == 5
  for request, documented, response in answers['rest']:
    (expected_texts, expected), (texts, numbers) = map(texts_and_numbers, (documented, response))
    assert texts == expected_texts, request
    np.testing.assert_allclose(numbers, expected, rtol=0, atol=2e-6, err_msg=request)
  assert answers['warm_up'] == {'shapes': ['serving_default', 'pictures', 'images'],
                                'homes': ['serving_default']}
  assert answers['grpc']['top_labels'] == [['square', 'star', 'circle']]
  # From the weights in served_models.py.
  logits = np.array([0, 1, .5, .25]) @ [[1, 0, -1], [0, 1, 0], [-1, .5, 2], [.5, -.5, 0]]
  np.testing.assert_allclose(answers['grpc']['probabilities'],
                             [np.exp(logits) / np.exp(logits).sum()], rtol=0, atol=1e-6)


def fields(message):
  """Returns the numbers and contents of the fields of a message, each of which has a length."""
  return [(field.field_number, field.data) for field in Empty.FromString(message).UnknownFields()]


def test_warm_up_requests_have_the_fields_of_tensorflow_serving(tmp_path):
  # Lengths of one, two and three bytes, and those where another byte begins.
  contents = {str(length): bytes(length) for length in (5, *range(90, 130), 70000)}
  saved_model.write_warm_up_requests(str(tmp_path), {
      'first': {name: tf.make_tensor_proto([content]) for name, content in contents.items()},
      'second': {'a': tf.make_tensor_proto([3])}})
  found = {}
  for record in tf.io.tf_record_iterator(str(tmp_path / saved_model.WARM_UP_FILE)):
    (of_log, predict_log), = fields(record)
    (of_predict_log, request), = fields(predict_log)
    (of_request, spec), *inputs = fields(request)
    assert [of_log, of_predict_log, of_request, *{number for number, _ in inputs}] == [6, 1, 1, 2]
    found[dict(fields(spec))[3].decode()] = {
        entry[1].decode(): tf.make_ndarray(tf.make_tensor_proto(0).FromString(entry[2])).tolist()
        for entry in (dict(fields(entry)) for _, entry in inputs)}
  assert found == {'first': {name: [content] for name, content in contents.items()},
                   'second': {'a': [3]}}

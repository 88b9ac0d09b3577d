"""Answers the requests of docs/serving.md in TensorFlow 2, as TensorFlow Serving documents it.

  PYTHON serve_documented_requests.py PAGE FOLDER

PAGE is the documentation; FOLDER has an exported SavedModel for each model name. The last line is a
JSON object: a list of [request, documented response, response] of the REST API, what the gRPC code
leaves in its variables, and the signatures of the requests that warm up each model. JSON to tensors
and back, and the gRPC stub, are stand-ins; the messages are those of tensorflow-serving-api.
"""

import base64
import json
import os
import re
import sys
import types

import tensorflow as tf
from google.protobuf import json_format, text_format
from tensorflow_serving.apis import (
  get_model_status_pb2,
  predict_pb2,
  prediction_log_pb2,
  prediction_service_pb2_grpc,
)
from tensorflow_serving.config import model_server_config_pb2

REST = re.compile(r'`POST \S+/v1/models/(\w+):predict`.*?```json\n(.*?)```.*?```json\n(.*?)```',
                  re.DOTALL)


def decode(value):
  """Returns an object of a request, or the bytes for {"b64": ...}."""
  return base64.b64decode(value['b64']) if 'b64' in value else value


def predict(loaded, body):
  """Returns the response to a request of the REST API, in the row or the column format."""
  signature = loaded.signatures[body.get('signature_name', 'serving_default')]
  _, specs = signature.structured_input_signature
  if 'inputs' in body:
    values = body['inputs']
  else:
    rows = [row if isinstance(row, dict) else dict.fromkeys(specs, row)
            for row in body['instances']]
    values = {name: [row[name] for row in rows] for name in rows[0]}
  assert set(values) == set(specs)
  outputs = signature(**{name: tf.constant(value, specs[name].dtype)
                         for name, value in values.items()})
  columns = {name: (array.numpy().astype('S').astype('U') if array.dtype == tf.string
                    else array.numpy()).tolist() for name, array in outputs.items()}
  assert len(columns) > 1  # Otherwise, the value of the only output would stand for the object.
  if 'inputs' in body:
    return {'outputs': columns}
  assert {len(column) for column in columns.values()} == {len(rows)}
  return {'predictions': [dict(zip(columns, row)) for row in zip(*columns.values())]}


def answer_message(loaded, request):
  """Returns the outputs of the signature that a PredictRequest names."""
  return loaded.signatures[request.model_spec.signature_name](
      **{name: tf.constant(tf.make_ndarray(value)) for name, value in request.inputs.items()})


def run_grpc_code(page, models):
  """Runs the Python code of the page with a stub of this process; returns its results."""
  def answer(request, timeout):
    outputs = answer_message(models[request.model_spec.name], request)
    return predict_pb2.PredictResponse(outputs={
        name: tf.make_tensor_proto(tensor.numpy()) for name, tensor in outputs.items()})

  prediction_service_pb2_grpc.PredictionServiceStub = (
      lambda channel: types.SimpleNamespace(Predict=answer))
  code, = re.findall(r'```python\n(.*?)```', page, re.DOTALL)
  variables = {}
  exec(code, variables)
  return {'probabilities': variables['probabilities'].tolist(),
          'top_labels': variables['top_labels'].astype('S').astype('U').tolist()}


def check_messages(page):
  """The configuration and the status on the page are valid messages of TensorFlow Serving."""
  config, = re.findall(r'```\n(model_config_list.*?)```', page, re.DOTALL)
  text_format.Parse(config, model_server_config_pb2.ModelServerConfig())
  status, = re.findall(r'```json\n(\{"model_version_status.*?)```', page, re.DOTALL)
  json_format.Parse(status, get_model_status_pb2.GetModelStatusResponse())


def replay_warm_up(folder, loaded):
  """Answers the requests that warm up a model; returns the names of their signatures."""
  path = os.path.join(folder, 'assets.extra', 'tf_serving_warmup_requests')
  names = []
  for record in tf.data.TFRecordDataset(path):
    request = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
    answer_message(loaded, request)
    names.append(request.model_spec.signature_name)
  return names


def main(page_path, folder):
  with open(page_path, encoding='utf-8') as file:
    page = file.read()
  check_messages(page)
  models = {name: tf.saved_model.load(os.path.join(folder, name)) for name in os.listdir(folder)}
  print(json.dumps({
      'rest': [[request, json.loads(documented),
                predict(models[name], json.loads(request, object_hook=decode))]
               for name, request, documented in REST.findall(page)],
      'grpc': run_grpc_code(page, models),
      'warm_up': {name: replay_warm_up(os.path.join(folder, name), loaded)
                  for name, loaded in models.items()}}))


if __name__ == '__main__':
  main(*sys.argv[1:])

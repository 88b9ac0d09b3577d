"""Answers the requests of docs/serving.md in TensorFlow 2, as TensorFlow Serving documents it.

  PYTHON serve_documented_requests.py PAGE FOLDER ANSWERS

PAGE is the documentation; FOLDER has an exported SavedModel for each model name. ANSWERS gets a
JSON list of [request, documented response, response] of the REST API, and what the gRPC code
leaves in its variables, and the signatures of the requests that warm up each model. The servers
here are stand-ins: JSON to tensors and back, and gRPC's own server with the service of
tensorflow-serving-api.
"""

import base64
import json
import os
import re
import sys
from concurrent import futures

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format, text_format
from tensorflow_serving.apis import (
  get_model_status_pb2,
  predict_pb2,
  prediction_log_pb2,
  prediction_service_pb2_grpc,
)

REST = re.compile(r'`POST \S+/v1/models/(\w+):predict`.*?```json\n(.*?)```.*?```json\n(.*?)```',
                  re.DOTALL)


def to_tensor(value, spec):
  """Returns the tensor of a JSON value; {"b64": ...} stands for the bytes of a string."""
  def decode(item):
    if isinstance(item, list):
      return [decode(element) for element in item]
    return base64.b64decode(item['b64']) if isinstance(item, dict) else item

  return tf.constant(decode(value), spec.dtype)


def call(signature, values):
  (_, specs) = signature.structured_input_signature
  assert set(values) == set(specs), 'inputs {}, not {}'.format(set(values), set(specs))
  return signature(**{name: to_tensor(value, specs[name]) for name, value in values.items()})


def nested(array):
  """Returns the lists of an array; strings are text, as no output has a name in `_bytes`."""
  array = np.asarray(array)
  if array.dtype == object:
    array = np.vectorize(lambda item: item.decode(), otypes=[object])(array)
  return array.tolist()


def predict(loaded, body):
  """Returns the response to a request of the REST API, in the row or the column format."""
  signature = loaded.signatures[body.get('signature_name', 'serving_default')]
  names = list(signature.structured_input_signature[1])
  assert ('instances' in body) != ('inputs' in body)
  if 'inputs' in body:
    values = body['inputs']
    outputs = call(signature, values if isinstance(values, dict) else {names[0]: values})
    columns = {name: nested(tensor.numpy()) for name, tensor in outputs.items()}
    return {'outputs': columns if len(columns) > 1 else list(columns.values())[0]}
  rows = [row if isinstance(row, dict) and 'b64' not in row else {names[0]: row}
          for row in body['instances']]
  outputs = call(signature, {name: [row[name] for row in rows] for name in rows[0]})
  columns = {name: nested(tensor.numpy()) for name, tensor in outputs.items()}
  assert {len(column) for column in columns.values()} == {len(rows)}
  predictions = [dict(zip(columns, row)) for row in zip(*columns.values())]
  return {'predictions': predictions if len(columns) > 1
          else [list(row.values())[0] for row in predictions]}


class Service(prediction_service_pb2_grpc.PredictionServiceServicer):

  def __init__(self, models):
    self.models = models

  def Predict(self, request, context):  # noqa: N802 (The service has this name.)
    assert context.time_remaining() is not None, 'a request without a deadline'
    signature = self.models[request.model_spec.name].signatures[request.model_spec.signature_name]
    outputs = signature(**{name: tf.constant(tf.make_ndarray(value))
                           for name, value in request.inputs.items()})
    response = predict_pb2.PredictResponse(model_spec=request.model_spec)
    for name, tensor in outputs.items():
      response.outputs[name].CopyFrom(tf.make_tensor_proto(tensor.numpy()))
    return response


def run_grpc_code(page, models):
  """Runs the Python code of the page against a server of this process; returns its variables."""
  code, = re.findall(r'```python\n(.*?)```', page, re.DOTALL)
  server = grpc.server(futures.ThreadPoolExecutor(1))
  prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(models), server)
  port = server.add_insecure_port('127.0.0.1:0')
  server.start()
  assert code.count("'localhost:8500'") == 1
  variables = {}
  try:
    exec(code.replace("'localhost:8500'", "'127.0.0.1:{}'".format(port)), variables)
  finally:
    server.stop(None)
  return {'probabilities': variables['probabilities'].tolist(),
          'top_labels': np.char.decode(variables['top_labels'].astype('S')).tolist()}


def check_messages(page):
  """The configuration and the status on the page are valid messages of TensorFlow Serving."""
  from tensorflow_serving.config import model_server_config_pb2
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
    loaded.signatures[request.model_spec.signature_name](
        **{name: tf.constant(tf.make_ndarray(value)) for name, value in request.inputs.items()})
    names.append(request.model_spec.signature_name)
  return names


def main(page_path, folder, answers):
  with open(page_path, encoding='utf-8') as file:
    page = file.read()
  models = {name: tf.saved_model.load(os.path.join(folder, name)) for name in os.listdir(folder)}
  rest = [[request, json.loads(documented), predict(models[name], json.loads(request))]
          for name, request, documented in REST.findall(page)]
  check_messages(page)
  with open(answers, 'w', encoding='utf-8') as file:
    json.dump({'rest': rest, 'grpc': run_grpc_code(page, models),
               'warm_up': {name: replay_warm_up(os.path.join(folder, name), loaded)
                           for name, loaded in models.items()}}, file)


if __name__ == '__main__':
  main(*sys.argv[1:])

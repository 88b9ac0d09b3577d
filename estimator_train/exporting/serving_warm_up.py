"""The requests that TensorFlow Serving makes to a model before it serves it to others.

They are records of `tensorflow.serving.PredictionLog`, which TensorFlow itself does not bring
along. All that is needed of it are fields inside of fields, so that they are written as protocol
buffers have them on the wire: the field's number and type, the length, the content.
"""

import os
from typing import Dict

import tensorflow.compat.v1 as tf

FILE = os.path.join('assets.extra', 'tf_serving_warmup_requests')

# The fields' numbers in Serving's prediction_log.proto, predict.proto and model.proto.
_LOG_PREDICT, _PREDICT_REQUEST = 6, 1
_REQUEST_SPEC, _REQUEST_INPUTS = 1, 2
_SPEC_SIGNATURE = 3
_KEY, _VALUE = 1, 2  # Of an entry of any map.
_WITH_LENGTH = 2  # The type of all of them.


def write(folder: str, requests: Dict[str, Dict[str, tf.make_tensor_proto]]) -> None:
  """Writes the file of requests.

  Args:
    folder: of the SavedModel.
    requests: by signature: the inputs' TensorProtos by name.
  """
  path = os.path.join(folder, FILE)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with tf.io.TFRecordWriter(path) as file:
    for signature, inputs in requests.items():
      request = _field(_REQUEST_SPEC, _field(_SPEC_SIGNATURE, signature.encode()))
      for name, tensor in inputs.items():
        request += _field(_REQUEST_INPUTS, _field(_KEY, name.encode())
                          + _field(_VALUE, tensor.SerializeToString()))
      file.write(_field(_LOG_PREDICT, _field(_PREDICT_REQUEST, request)))


def _field(number: int, content: bytes) -> bytes:
  return bytes([number << 3 | _WITH_LENGTH]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
  """Returns seven bits a byte, the lowest first; the eighth says that more follow."""
  if number < 128:
    return bytes([number])
  return bytes([number % 128 | 128]) + _varint(number // 128)

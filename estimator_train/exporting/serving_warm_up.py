"""Warm-up requests, which TensorFlow Serving sends to a model before serving it.

They are records of `tensorflow.serving.PredictionLog`, which is not part of TensorFlow. The needed
fields are all nested messages or strings, so they are encoded here in the wire format of protocol
buffers: field number and type, length, content.
"""

import os
from typing import Dict

import tensorflow.compat.v1 as tf

FILE = os.path.join('assets.extra', 'tf_serving_warmup_requests')

# Field numbers of TensorFlow Serving's prediction_log.proto, predict.proto and model.proto.
_LOG_PREDICT, _PREDICT_REQUEST = 6, 1
_REQUEST_SPEC, _REQUEST_INPUTS = 1, 2
_SPEC_SIGNATURE = 3
_KEY, _VALUE = 1, 2  # The fields of an entry of a map.
_LENGTH_DELIMITED = 2  # The wire type of all these fields.


def write_warm_up_requests(folder: str,
                           requests: Dict[str, Dict[str, tf.make_tensor_proto]]) -> None:
  """Writes the file with the warm-up requests.

  Args:
    folder: the folder of the SavedModel.
    requests: for each signature, the TensorProtos of its inputs by name.
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
  return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
  """Encodes seven bits per byte, the lowest first; the eighth bit is set if more bytes follow."""
  if number < 128:
    return bytes([number])
  return bytes([number % 128 | 128]) + _varint(number // 128)

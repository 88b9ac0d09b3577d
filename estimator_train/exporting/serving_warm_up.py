"""Writes warm-up requests, which TensorFlow Serving sends to a model before serving it.

Each request is a record with a protocol buffer `tensorflow.serving.PredictionLog`. TensorFlow does
not contain this class, so this module itself encodes the fields that are needed. All these
fields are nested messages or strings. The encoding of such a field consists of the field number and
the wire type, the length and the content.
"""

import os
from typing import Any, Dict

import tensorflow.compat.v1 as tf

WARM_UP_FILE = os.path.join('assets.extra', 'tf_serving_warmup_requests')

# Field numbers of TensorFlow Serving's prediction_log.proto, predict.proto and model.proto.
_LOG_PREDICT, _PREDICT_REQUEST = 6, 1
_REQUEST_SPEC, _REQUEST_INPUTS = 1, 2
_SPEC_SIGNATURE = 3
_KEY, _VALUE = 1, 2  # The fields of an entry in a map.
_LENGTH_DELIMITED = 2  # The wire type of all these fields.


def write_warm_up_requests(folder: str, requests: Dict[str, Dict[str, Any]]) -> None:
  """Writes the file with the warm-up requests.

  Args:
    folder: the folder of the SavedModel.
    requests: for each signature, the TensorProtos of its inputs by name.
  """
  path = os.path.join(folder, WARM_UP_FILE)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with tf.io.TFRecordWriter(path) as file:
    for signature, inputs in requests.items():
      request = _encode_field(_REQUEST_SPEC, _encode_field(_SPEC_SIGNATURE, signature.encode()))
      for name, tensor in inputs.items():
        request += _encode_field(_REQUEST_INPUTS, _encode_field(_KEY, name.encode())
                                 + _encode_field(_VALUE, tensor.SerializeToString()))
      file.write(_encode_field(_LOG_PREDICT, _encode_field(_PREDICT_REQUEST, request)))


def _encode_field(number: int, content: bytes) -> bytes:
  """Encodes a field of wire type _LENGTH_DELIMITED with this field number."""
  return bytes([number << 3 | _LENGTH_DELIMITED]) + _encode_varint(len(content)) + content


def _encode_varint(number: int) -> bytes:
  """Encodes seven bits per byte, lowest bits first; the eighth bit is set if more bytes follow."""
  if number < 128:
    return bytes([number])
  return bytes([number % 128 | 128]) + _encode_varint(number // 128)

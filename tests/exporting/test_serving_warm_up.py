"""The warm-up file, read with the fields of TensorFlow Serving's messages."""

import tensorflow.compat.v1 as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from estimator_train.exporting import serving_warm_up

BYTES, STRING, MESSAGE, REPEATED, ONE = 12, 9, 11, 3, 1
# (message, its fields: (name, number, kind, message, label)); an entry of a map is a message.
MESSAGES = (
    ('ModelSpec', (('name', 1, STRING, None, ONE), ('signature_name', 3, STRING, None, ONE))),
    ('Entry', (('key', 1, STRING, None, ONE), ('value', 2, BYTES, None, ONE))),
    ('PredictRequest', (('model_spec', 1, MESSAGE, 'ModelSpec', ONE),
                        ('inputs', 2, MESSAGE, 'Entry', REPEATED))),
    ('PredictLog', (('request', 1, MESSAGE, 'PredictRequest', ONE),)),
    ('PredictionLog', (('predict_log', 6, MESSAGE, 'PredictLog', ONE),)),
)


def prediction_log():
  """Returns the class of such messages."""
  file = descriptor_pb2.FileDescriptorProto(name='warm_up', package='warm_up', syntax='proto3')
  for name, fields in MESSAGES:
    message = file.message_type.add(name=name)
    for field, number, kind, of, label in fields:
      message.field.add(name=field, number=number, type=kind, label=label,
                        type_name=of and '.warm_up.' + of)
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return message_factory.MessageFactory(pool).GetPrototype(
      pool.FindMessageTypeByName('warm_up.PredictionLog'))


def test_requests_come_back(tmp_path):
  content = bytes(range(256)) * 300  # Its length takes three bytes.
  serving_warm_up.write_warm_up_requests(str(tmp_path), {
      'first': {'content': tf.make_tensor_proto([content])},
      'second': {'a': tf.make_tensor_proto(0., shape=(1, 5)), 'b': tf.make_tensor_proto([3])},
  })
  path = tmp_path / 'assets.extra' / 'tf_serving_warmup_requests'
  logs = [prediction_log().FromString(record) for record in tf.io.tf_record_iterator(str(path))]
  requests = [log.predict_log.request for log in logs]
  assert [request.model_spec.signature_name for request in requests] == ['first', 'second']
  arrays = [{entry.key: tf.make_ndarray(tf.make_tensor_proto(0).FromString(entry.value)).tolist()
             for entry in request.inputs} for request in requests]
  assert arrays == [{'content': [content]}, {'a': [[0.] * 5], 'b': [3]}]

"""Loads what was exported in TensorFlow 2, and answers requests; knows nothing of the package.

  PYTHON serve_in_tensorflow_2.py SAVED_MODEL H5_FILE REQUEST ANSWER

REQUEST is an .npz file of `contents` (those of image files, each as uint8 in a row of its own, and
their `lengths`), `images` (float32, scaled) and `labels` (one-hot). ANSWER gets the outputs.
"""

import os
import sys

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow_serving.apis import prediction_log_pb2


def main(folder, h5_file, request, answer):
  asked = np.load(request)
  contents = [row[:length].tobytes() for row, length in zip(asked['contents'], asked['lengths'])]
  loaded = tf.saved_model.load(folder)
  outputs = loaded.signatures['serving_default'](image_bytes=tf.constant(contents))
  by_tensor = loaded.signatures['images'](images=tf.constant(asked['images']))
  model = tf_keras.models.load_model(h5_file)
  loss, _ = model.evaluate(asked['images'], asked['labels'], verbose=0)
  in_keras_3 = keras.models.load_model(h5_file)
  warmed_up = []
  for record in tf.data.TFRecordDataset(
      os.path.join(folder, 'assets.extra', 'tf_serving_warmup_requests')):
    warm_up = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
    loaded.signatures[warm_up.model_spec.signature_name](
        **{name: tf.constant(tf.make_ndarray(value)) for name, value in warm_up.inputs.items()})
    warmed_up.append(warm_up.model_spec.signature_name)
  np.savez(answer, version=tf.__version__, by_bytes=outputs['probabilities'],
           top_labels=outputs['top_labels'].numpy().astype('S'),
           by_tensor=by_tensor['probabilities'], by_h5=model.predict(asked['images'], verbose=0),
           h5_loss=loss, by_keras_3=in_keras_3.predict(asked['images'], verbose=0),
           keras_3_loss=in_keras_3.evaluate(asked['images'], asked['labels'], verbose=0)[0],
           warmed_up=warmed_up)


if __name__ == '__main__':
  main(*sys.argv[1:])

"""Predicts the images of a folder or of TFRecord files by `predict` of Keras 3 on TensorFlow 2.

  PYTHON tests/benchmarks/keras3_predict.py MODEL.h5 FOLDER|RECORDS OUTPUT

PYTHON is one that has Keras 3, which this package's has not: so nothing of it is imported. OUTPUT
gets a line per image: the class with the highest probability, and the probability.
"""

import functools
import glob
import os
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

BATCH_SIZE = 256
SIZE = 28, 28


def main():
  model_file, images, output = sys.argv[1:]
  model = keras.models.load_model(model_file, compile=False)
  channels = model.input_shape[-1]
  if os.path.isdir(images):
    dataset = keras.utils.image_dataset_from_directory(
        images, labels=None, color_mode='grayscale' if channels == 1 else 'rgb',
        batch_size=BATCH_SIZE, image_size=SIZE, shuffle=False, verbose=False)
  else:
    dataset = tf.data.TFRecordDataset(sorted(glob.glob(images))).map(
        functools.partial(_decode, channels), num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH_SIZE)
  dataset = dataset.map(lambda batch: tf.cast(batch, tf.float32) / 255).prefetch(tf.data.AUTOTUNE)
  probabilities = model.predict(dataset, verbose=0)
  with open(output, 'w') as file:
    for row in probabilities:
      file.write('{} {}\n'.format(row.argmax(), row.max()))
  print('done')


def _decode(channels, record):
  example = tf.io.parse_single_example(
      record, {'image/encoded': tf.io.FixedLenFeature((), tf.string)})
  return tf.ensure_shape(tf.io.decode_jpeg(example['image/encoded'], channels=channels),
                         (*SIZE, channels))


if __name__ == '__main__':
  main()

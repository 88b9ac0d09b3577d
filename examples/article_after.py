"""Trains Fashion-MNIST: article_before.py with three changed lines. In a clone:

    ./run_train.sh --help
    .venv/bin/python examples/article_after.py runs/article_after

The first command makes the environment .venv. The second one may end with a number of steps. The
throughput report is in runs/article_after/throughput.json and runs/article_after/report/index.html.
"""

import argparse
import gzip
import os

import numpy as np
import tensorflow as tf

import estimator_train

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'estimator_train',
                    'data', 'fashion_mnist_sample_files')
BATCH_SIZE = 256


def load(name):
  """Returns images in [0, 1] and one-hot labels."""
  with gzip.open(os.path.join(DATA, name + '-images-idx3-ubyte.gz')) as file:
    images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28, 1)
  with gzip.open(os.path.join(DATA, name + '-labels-idx1-ubyte.gz')) as file:
    labels = np.frombuffer(file.read(), np.uint8, offset=8)
  return images.astype(np.float32) / 255, np.eye(10, dtype=np.float32)[labels]


def make_model():
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=(28, 28, 1)),
      layers.MaxPooling2D(2), layers.Conv2D(64, 3, activation='relu'), layers.MaxPooling2D(2),
      layers.Conv2D(64, 3, activation='relu'), layers.Flatten(),
      layers.Dense(64, activation='relu'), layers.Dense(10, activation='softmax')])


def input_fn(images, labels, epochs, batch_size):
  dataset = tf.data.Dataset.from_tensor_slices((images, labels))
  dataset = dataset.apply(tf.data.experimental.shuffle_and_repeat(5000, epochs))
  return dataset.batch(batch_size).prefetch(2)


def main(model_dir, steps):
  strategy = tf.distribute.MirroredStrategy()  # All GPUs, or one CPU device.
  batch_per_replica = BATCH_SIZE // strategy.num_replicas_in_sync
  model = make_model()
  model.compile(tf.train.AdamOptimizer(0.001), 'categorical_crossentropy', metrics=['accuracy'])
  estimator = estimator_train.convert(
      model, config=tf.estimator.RunConfig(model_dir=model_dir, train_distribute=strategy))
  time_history = estimator_train.TimeHistory(BATCH_SIZE, report_dir=model_dir)

  train_images, train_labels = load('train')
  estimator.train(lambda: input_fn(train_images, train_labels, None, batch_per_replica),
                  steps=steps, hooks=[time_history])
  print('{:.2f} s per step'.format(sum(time_history.times) / len(time_history.times)))
  test_images, test_labels = load('t10k')
  print(estimator.evaluate(lambda: input_fn(test_images, test_labels, 1, BATCH_SIZE)))


if __name__ == '__main__':
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('model_dir')
  parser.add_argument('steps', type=int, nargs='?', default=200)
  main(**vars(parser.parse_args()))

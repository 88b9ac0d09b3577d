"""The article's small case as it is plainly written, to compare this package with.

  python tests/benchmarks/article_fashion_mnist.py --data_dir=DIR --model_dir=DIR
      [--train_steps=1000] [--batch_size=256]

The workflow of 2018: Fashion-MNIST in NumPy arrays, a Keras model, model_to_estimator under
MirroredStrategy, and a hook that times the steps. It is the yardstick, and not how this package
does it: the arrays enter the graph, which is slow to start and large; tf.train optimizers take too
short a step under more than one replica; and the mean step time leaves out what happens between
steps.
"""

import gzip
import json
import os
import time
from typing import Any, Dict, List, Tuple

import common
import numpy as np
import tensorflow as tf

NUM_CLASSES = 10


class TimeHistory(tf.train.SessionRunHook):
  """Keeps the time of each step, in seconds."""

  def __init__(self, train_steps: int) -> None:
    self._train_steps = train_steps
    self.step_secs: List[float] = []
    self._began = 0.

  def before_run(self, run_context: Any) -> None:
    self._began = time.time()

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self.step_secs.append(time.time() - self._began)
    if len(self.step_secs) == 1:
      print(common.ARTICLE_FIRST_STEP, flush=True)
    if len(self.step_secs) == self._train_steps:
      print(common.ARTICLE_LAST_STEP, flush=True)


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_data_dir()
  parser.add_argument('--model_dir', required=True, help='folder for the checkpoints')
  parser.add_count('--train_steps', 1000, 'steps to train')
  parser.add_count('--batch_size', 256, 'images a step, over all replicas')
  args = parser.parse_args()

  strategy = tf.distribute.MirroredStrategy()
  num_replicas = strategy.num_replicas_in_sync
  if args.batch_size % num_replicas:
    parser.error('--batch_size must divide evenly by the number of replicas: {} over {}: give a '
                 'multiple'.format(args.batch_size, num_replicas))
  per_replica = args.batch_size // num_replicas

  train = load(args.data_dir, 'train')
  test = load(args.data_dir, 't10k')
  model = _fashion_cnn()
  model.compile(optimizer=tf.train.AdamOptimizer(learning_rate=0.001),
                loss='categorical_crossentropy', metrics=['accuracy'])
  estimator = tf.keras.estimator.model_to_estimator(
      model, model_dir=args.model_dir, config=tf.estimator.RunConfig(train_distribute=strategy))

  history = TimeHistory(args.train_steps)
  estimator.train(lambda: make_input(train, None, per_replica), steps=args.train_steps,
                  hooks=[history])
  evaluation = estimator.evaluate(lambda: make_input(test, 1, per_replica))
  _report(history.step_secs, args.batch_size, num_replicas, evaluation)


def load(data_dir: str, split: str) -> Tuple[np.ndarray, np.ndarray]:
  """Returns images, float32 [N, 28, 28, 1] in [0, 1], and one-hot labels, float32 [N, 10]."""
  with gzip.open(os.path.join(data_dir, split + '-labels-idx1-ubyte.gz')) as file:
    labels = np.frombuffer(file.read(), np.uint8, offset=8)
  with gzip.open(os.path.join(data_dir, split + '-images-idx3-ubyte.gz')) as file:
    images = np.frombuffer(file.read(), np.uint8, offset=16)
  images = images.reshape(len(labels), 28, 28, 1).astype(np.float32) / 255
  return images, np.eye(NUM_CLASSES, dtype=np.float32)[labels]


def _fashion_cnn() -> tf.keras.Model:
  model = tf.keras.Sequential()
  model.add(tf.keras.layers.Conv2D(32, (3, 3), activation='relu', input_shape=(28, 28, 1)))
  model.add(tf.keras.layers.MaxPooling2D((2, 2), strides=2))
  model.add(tf.keras.layers.Conv2D(64, (3, 3), activation='relu'))
  model.add(tf.keras.layers.MaxPooling2D((2, 2), strides=2))
  model.add(tf.keras.layers.Conv2D(64, (3, 3), activation='relu'))
  model.add(tf.keras.layers.Flatten())
  model.add(tf.keras.layers.Dense(64, activation='relu'))
  model.add(tf.keras.layers.Dense(NUM_CLASSES, activation='softmax'))
  return model


def make_input(split: Tuple[np.ndarray, np.ndarray], epochs: Any,
               batch_size: int) -> tf.data.Dataset:
  dataset = tf.data.Dataset.from_tensor_slices(split)
  return dataset.shuffle(5000).repeat(epochs).batch(batch_size).prefetch(2)


def _report(step_secs: List[float], batch_size: int, num_replicas: int,
            evaluation: Dict[str, Any]) -> None:
  total_secs = sum(step_secs)
  images_per_sec = batch_size / (total_secs / len(step_secs))
  print('total seconds {:.2f}, images/second {:.0f}'.format(total_secs, images_per_sec))
  print('accuracy {acc:.4f}, loss {loss:.4f} at step {global_step}'.format(**evaluation))
  print(json.dumps({
      'benchmark': 'article_fashion_mnist', 'total_secs': total_secs,
      'images_per_sec': images_per_sec, 'global_batch_size': batch_size,
      'num_replicas': num_replicas, 'accuracy': float(evaluation['acc']),
      'loss': float(evaluation['loss']), 'global_step': int(evaluation['global_step'])}))


if __name__ == '__main__':
  common.exit_with(main)

"""Training by `model.fit` of tf.keras, to compare this package with.

  python tests/benchmarks/keras_fit.py --data_dir=DIR [--train_steps=220] [--warmup_steps=20]
      [--batch_size=256]

`fashion_cnn` on Fashion-MNIST with Adam, within one epoch, from NumPy arrays. The last line is
images a second between the end of the warm-up and the end of the last step, as JSON.
"""

import json
import time
from typing import Any, List

import article_fashion_mnist
import common
import tensorflow as tf

from estimator_train.model import networks


class StepEnds(tf.keras.callbacks.Callback):
  """Keeps when each step ended."""

  def __init__(self) -> None:
    super().__init__()
    self.secs: List[float] = []

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    self.secs.append(time.perf_counter())


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_data_dir()
  parser.add_count('--train_steps', 220, 'steps to train', minimum=2)
  parser.add_count('--warmup_steps', 20, 'steps of these that are not timed')
  parser.add_count('--batch_size', 256, 'images a step')
  args = parser.parse_args()
  images, labels = article_fashion_mnist.load(args.data_dir, 'train')
  count = args.train_steps * args.batch_size
  if args.warmup_steps >= args.train_steps or count > len(labels):
    parser.error('no such epoch: {} steps of {}, {} of them warm-up: {} images are an epoch'.format(
        args.train_steps, args.batch_size, args.warmup_steps, len(labels)))

  tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
  model = networks.fashion_cnn((28, 28, 1), article_fashion_mnist.NUM_CLASSES)
  model.compile(optimizer=tf.keras.optimizers.Adam(0.001), loss='categorical_crossentropy',
                metrics=['accuracy'])
  ends = StepEnds()
  model.fit(images[:count], labels[:count], batch_size=args.batch_size, verbose=0,
            callbacks=[ends])
  secs = ends.secs[-1] - ends.secs[args.warmup_steps - 1]
  steps = len(ends.secs) - args.warmup_steps
  print(json.dumps({'images_per_sec': steps * args.batch_size / secs, 'steps_timed': steps}))


if __name__ == '__main__':
  common.exit_with(main)

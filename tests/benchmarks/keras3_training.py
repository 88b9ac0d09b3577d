"""The same networks by `model.fit` of Keras 3 on TensorFlow 2, to compare this package with.

  PYTHON tests/benchmarks/keras3_training.py [--model=fashion_cnn|vgg16|resnet50] [--data_dir=DIR]
      [--trainable_layers=N] [--image_size=224] [--train_steps=300] [--warmup_steps=20]
      [--batch_size=256] [--pause_steps=N]

Trains with Adam. `fashion_cnn` trains on Fashion-MNIST in a tf.data pipeline of arrays, the others
on one random batch of uint8 images, as `--dataset=synthetic` does. PYTHON is one that has Keras 3,
which this package's has not: so nothing of it is imported. Prints a line at the end of the first
and of the last step; the last line is images a second between the end of the warm-up and the end of
the last step, as JSON. With --pause_steps, `fashion_cnn` is evaluated on the test images and saved
after each N steps, and the last line is the seconds of the first evaluation, and the medians of
those of the later evaluations and saves.
"""

import argparse
import gzip
import json
import os
import statistics
import tempfile
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

NUM_CLASSES = 10
FIRST_STEP, LAST_STEP = 'first step done', 'last step done'  # As of the article's script.


class StepEnds(keras.callbacks.Callback):
  """Keeps when each step ended."""

  def __init__(self, train_steps):
    super().__init__()
    self._train_steps = train_steps
    self.secs = []

  def on_train_batch_end(self, batch, logs=None):
    self.secs.append(time.perf_counter())
    if len(self.secs) == 1:
      print(FIRST_STEP, flush=True)
    if len(self.secs) == self._train_steps:
      print(LAST_STEP, flush=True)


class Pauses(keras.callbacks.Callback):
  """Measures the evaluations, and what callbacks after this one do at the end of an epoch."""

  def __init__(self):
    super().__init__()
    self.evaluation_secs, self.checkpoint_secs = [], []

  def on_test_begin(self, logs=None):
    self._began = time.perf_counter()

  def on_test_end(self, logs=None):
    self.evaluation_secs.append(time.perf_counter() - self._began)

  def on_epoch_end(self, epoch, logs=None):
    self._began = time.perf_counter()

  def on_epoch_begin(self, epoch, logs=None):
    if epoch:
      self.checkpoint_secs.append(time.perf_counter() - self._began)


def main():
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument('--model', choices=('fashion_cnn', 'vgg16', 'resnet50'),
                      default='fashion_cnn')
  parser.add_argument('--data_dir')
  parser.add_argument('--trainable_layers', type=int)
  parser.add_argument('--image_size', type=int, default=224)
  parser.add_argument('--train_steps', type=int, default=300)
  parser.add_argument('--warmup_steps', type=int, default=20)
  parser.add_argument('--batch_size', type=int, default=256)
  parser.add_argument('--pause_steps', type=int)
  args = parser.parse_args()

  if args.model == 'fashion_cnn':
    model, dataset = _fashion_cnn(), _fashion_mnist(args)
  else:
    model, dataset = _application(args), _synthetic(args)
  model.compile(keras.optimizers.Adam(0.001), 'sparse_categorical_crossentropy',
                metrics=['accuracy'])
  if args.pause_steps:
    pauses = Pauses()
    with tempfile.TemporaryDirectory() as folder:
      model.fit(dataset, steps_per_epoch=args.pause_steps, verbose=0,
                epochs=args.train_steps // args.pause_steps,
                validation_data=_scaled(_arrays(args, 't10k').batch(args.batch_size)),
                callbacks=[pauses, keras.callbacks.ModelCheckpoint(folder + '/model.keras')])
    print(json.dumps({'first_evaluation_secs': pauses.evaluation_secs[0],
                      **{name: statistics.median(getattr(pauses, name)[1:])
                         for name in ('evaluation_secs', 'checkpoint_secs')}}))
    return
  ends = StepEnds(args.train_steps)
  model.fit(dataset, steps_per_epoch=args.train_steps, verbose=0, callbacks=[ends])
  steps = args.train_steps - args.warmup_steps
  secs = ends.secs[-1] - ends.secs[args.warmup_steps - 1]
  print(json.dumps({'images_per_sec': steps * args.batch_size / secs, 'steps_timed': steps}))


def _fashion_mnist(args):
  """Returns shuffled batches of Fashion-MNIST, without end."""
  return _scaled(_arrays(args, 'train').shuffle(60000).repeat().batch(args.batch_size))


def _arrays(args, split):
  """Returns the examples of `train` or `t10k`."""
  with gzip.open(os.path.join(args.data_dir, split + '-labels-idx1-ubyte.gz')) as file:
    labels = np.frombuffer(file.read(), np.uint8, offset=8)
  with gzip.open(os.path.join(args.data_dir, split + '-images-idx3-ubyte.gz')) as file:
    images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28, 1)
  return tf.data.Dataset.from_tensor_slices((images, labels.astype(np.int32)))


def _synthetic(args):
  """Returns one random batch, without end."""
  images = np.random.randint(0, 256, (args.batch_size, args.image_size, args.image_size, 3))
  labels = np.random.randint(0, NUM_CLASSES, args.batch_size)
  return _scaled(tf.data.Dataset.from_tensors(
      (images.astype(np.uint8), labels.astype(np.int32))).repeat())


def _scaled(dataset):
  return dataset.map(lambda images, labels: (tf.cast(images, tf.float32) / 255, labels)).prefetch(2)


def _fashion_cnn():
  layers = keras.layers
  return keras.Sequential([
      layers.Input((28, 28, 1)),
      layers.Conv2D(32, 3, activation='relu'), layers.MaxPooling2D(2),
      layers.Conv2D(64, 3, activation='relu'), layers.MaxPooling2D(2),
      layers.Conv2D(64, 3, activation='relu'), layers.Flatten(),
      layers.Dense(64, activation='relu'), layers.Dense(NUM_CLASSES, activation='softmax')])


def _application(args):
  """Returns a network with the head that this package gives it."""
  make = {'vgg16': keras.applications.VGG16, 'resnet50': keras.applications.ResNet50}[args.model]
  backbone = make(weights=None, include_top=False,
                  input_shape=(args.image_size, args.image_size, 3))
  if args.trainable_layers is not None:
    for layer in backbone.layers[:len(backbone.layers) - args.trainable_layers]:
      layer.trainable = False
  features = keras.layers.Flatten()(backbone.output)
  return keras.Model(backbone.input, keras.layers.Dense(
      NUM_CLASSES, activation='softmax')(features))


if __name__ == '__main__':
  main()

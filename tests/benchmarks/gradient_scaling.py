"""What two replicas do to the weights: the plain workflow compared with this package.

  python tests/benchmarks/gradient_scaling.py [--train_steps=3] [--replicas=2]

Trains a two-layer network that is compiled with `tf.train.GradientDescentOptimizer(0.5)` on the
sample of Fashion-MNIST, on one device and on several logical CPU devices with the same examples,
and prints the largest difference between the weights: by `model_to_estimator` as it is, and by this
package. An exact workflow differs by rounding only.
"""

import json
import tempfile
from typing import Any, Dict

import common
import numpy as np
import tensorflow.compat.v1 as tf

import estimator_train
from estimator_train.data import binary_files, mnist
from estimator_train.data.batching import BatchSettings, OrderSettings, PixelSettings
from estimator_train.settings import Settings

BATCH_SIZE = 64
Weights = Dict[str, np.ndarray]


def two_layers() -> tf.keras.Model:
  """The model of both; the package finds it by name."""
  layers = tf.keras.layers
  model = tf.keras.Sequential([
      layers.Flatten(input_shape=(28, 28, 1)),
      layers.Dense(32, activation='tanh'),
      layers.Dense(10, activation='softmax'),
  ])
  model.compile(tf.train.GradientDescentOptimizer(0.5), 'categorical_crossentropy')
  return model


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_count('--train_steps', 3, 'steps to train')
  parser.add_count('--replicas', 2, 'logical CPU devices', minimum=2)
  args = parser.parse_args()
  tf.logging.set_verbosity(tf.logging.ERROR)

  differences: Dict[str, float] = {}
  for name, train in (('model_to_estimator as it is', _train_plainly),
                      ('estimator_train', _train_by_package)):
    one, several = (train(replicas, args.train_steps) for replicas in (1, args.replicas))
    differences[name] = max(float(np.abs(one[key] - several[key]).max()) for key in one)
  machine = common.machine()
  print('{}; {} steps at rate 0.5, global batch {}, 1 against {} replicas\n'.format(
      common.machine_line(machine), args.train_steps, BATCH_SIZE, args.replicas))
  print(common.markdown_table(['workflow', 'largest difference of a weight'], [
      [name, '{:.1e}'.format(difference)] for name, difference in differences.items()]))
  print()
  print(json.dumps({'benchmark': 'gradient_scaling', 'machine': machine,
                    'train_steps': args.train_steps, 'replicas': args.replicas,
                    'differences': differences}))


def _train_plainly(replicas: int, steps: int) -> Weights:
  with tempfile.TemporaryDirectory(prefix='benchmark-') as model_dir, tf.Graph().as_default():
    strategy = tf.distribute.MirroredStrategy(['/cpu:{}'.format(n) for n in range(replicas)])
    config = tf.estimator.RunConfig(
        model_dir=model_dir, tf_random_seed=1, train_distribute=strategy,
        session_config=tf.ConfigProto(device_count={'CPU': replicas}))
    estimator = tf.keras.estimator.model_to_estimator(two_layers(), config=config)
    dataset = mnist.describe_data_set('fashion_mnist_sample')
    estimator.train(binary_files.IdxSource(dataset.spec, dataset.train).make_train_input_fn(
        OrderSettings(shuffle_buffer=5000), PixelSettings((28, 28, 1)),
        BatchSettings(BATCH_SIZE // replicas, 10, one_hot=True), 'none'), steps=steps)
    return _weights(model_dir)


def _train_by_package(replicas: int, steps: int) -> Weights:
  with tempfile.TemporaryDirectory(prefix='benchmark-') as model_dir:
    # By the name that this file can be imported by.
    settings = Settings(mode='train', model='gradient_scaling:two_layers', model_dir=model_dir,
                        train_steps=steps, batch_size=BATCH_SIZE, seed=1,
                        num_cpu_replicas=replicas)
    estimator_train.train(settings)
    return _weights(model_dir)


def _weights(model_dir: str) -> Weights:
  checkpoint: Any = tf.train.latest_checkpoint(model_dir)
  return {name: tf.train.load_variable(checkpoint, name)
          for name, _ in tf.train.list_variables(checkpoint) if name.startswith('dense')}


if __name__ == '__main__':
  common.exit_with(main)

"""Continues a training run in TensorFlow 2, with its weights and optimizer slots. In a clone:

    ./run_train.sh --dataset=fashion_mnist_sample --model=mnist_dense --model_dir=runs/before \
        --batch_size=64 --train_steps=100
    scripts/install_clients
    .venv-clients/bin/python examples/continue_in_tensorflow_2.py runs/before 50

The second command creates an environment with TensorFlow 2 and tf_keras; this script needs only
these two and NumPy. It trains for 50 more steps on the sample of Fashion-MNIST, or on the arrays
`images` (pixel values from 0 to 255) and `classes` of an .npz file that is the third argument, and
saves runs/before/continued.keras. The last line that it prints is JSON with the loss of each step.
"""

import argparse
import gzip
import json
import os

import numpy as np
import tensorflow as tf
import tf_keras

SAMPLE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                      'estimator_train', 'data', 'fashion_mnist_sample_files')
# By --optimizer: the name in a checkpoint, the slots of each weight, and the same optimizer of
# tf_keras. The optimizers in `legacy` are those of TensorFlow 1.15: their slots have these names.
legacy = tf_keras.optimizers.legacy
OPTIMIZERS = {
    'adam': ('Adam', ('m', 'v'), legacy.Adam),
    'adamw': ('AdamW', ('m', 'v'), legacy.Adam),  # Without weight decay, see REQUIRED.
    'sgd': ('SGD', (), legacy.SGD),
    'momentum': ('Momentum', ('momentum',), lambda rate: legacy.SGD(rate, momentum=0.9)),
    'rmsprop': ('RMSprop', ('rms',), legacy.RMSprop),
}
# With other values, the run has a loss, a learning rate or pixel values that this script lacks.
REQUIRED = {'lr_schedule': 'constant', 'lr_warmup_epochs': '0.0', 'scale_learning_rate': 'none',
            'class_weights': 'none', 'label_smoothing': '0.0', 'weight_decay': '0.0',
            'augment': 'none', 'dtype': 'fp32', 'preprocess': 'unit'}


def read_flags(model_dir):
  """Returns the flags of the run as text."""
  with open(os.path.join(model_dir, 'flags.txt')) as file:
    lines = [line.strip() for line in file if line.startswith('--')]
  flags = dict(line[2:].split('=', 1) for line in lines if '=' in line)
  if flags['optimizer'] not in OPTIMIZERS:
    raise SystemExit('error: tf_keras has no such optimizer: the run has --optimizer={}: continue '
                     'with one of {}'.format(flags['optimizer'], ', '.join(OPTIMIZERS)))
  for name, value in REQUIRED.items():
    if flags.get(name, value) != value:
      raise SystemExit('error: this script supports only --{}={}: the run has --{}={}: change the '
                       'script'.format(name, value, name, flags[name]))
  return flags


def restore(model_dir):
  """Returns the model of the latest checkpoint, compiled with the restored optimizer."""
  flags = read_flags(model_dir)
  model = tf_keras.models.load_model(os.path.join(model_dir, 'model.h5'))
  checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(model_dir))
  name, slots, make_optimizer = OPTIMIZERS[flags['optimizer']]
  optimizer = make_optimizer(float(flags['learning_rate']))
  for weight in model.weights:
    weight.assign(checkpoint.get_tensor(weight.name.split(':')[0]))
  # Adam corrects its moments by the number of steps, which a checkpoint has as the global step.
  optimizer.iterations.assign(checkpoint.get_tensor('global_step'))
  for slot in slots:
    for weight in model.trainable_weights:
      optimizer.add_slot(weight, slot).assign(checkpoint.get_tensor(
          'training/{}/{}/{}'.format(name, weight.name.split(':')[0], slot)))
  # The file has the loss of the run. Its metrics and its optimizer are replaced.
  model.compile(optimizer, loss=model.loss, metrics=['accuracy'])
  return model, int(flags['batch_size'])


def read_sample():
  """Returns the training images of the sample and their class indices."""
  arrays = []
  for name, header_bytes in (('images-idx3', 16), ('labels-idx1', 8)):
    with gzip.open(os.path.join(SAMPLE, 'train-{}-ubyte.gz'.format(name))) as file:
      arrays.append(np.frombuffer(file.read(), np.uint8, offset=header_bytes))
  return arrays[0].reshape(-1, 28, 28, 1), arrays[1]


def make_dataset(images, classes, num_classes, batch_size):
  """Returns the batches that the `input_fn` of the run made: scaled images and one-hot labels."""
  dataset = tf.data.Dataset.from_tensor_slices((images, classes)).shuffle(len(images)).repeat()
  return dataset.batch(batch_size).map(lambda image, index: (
      tf.cast(image, tf.float32) / 255, tf.one_hot(index, num_classes))).prefetch(2)


def main(model_dir, steps, examples=None):
  model, batch_size = restore(model_dir)
  first_step = int(model.optimizer.iterations)
  if examples is None:
    images, classes = read_sample()
  else:
    arrays = np.load(examples)
    images, classes = arrays['images'], arrays['classes']
  losses = []
  for batch in make_dataset(images, classes, model.output_shape[-1], batch_size).take(steps):
    loss, accuracy = model.train_on_batch(*batch)
    losses.append([first_step + len(losses) + 1, float(loss)])
  print('trained from step {} to {}: loss {:.4f}, accuracy {:.4f} on the last batch'.format(
      first_step, int(model.optimizer.iterations), loss, accuracy))
  model.save(os.path.join(model_dir, 'continued.keras'))
  print(json.dumps({'train_loss': losses}))


if __name__ == '__main__':
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('model_dir')
  parser.add_argument('steps', type=int)
  parser.add_argument('examples', nargs='?')
  main(**vars(parser.parse_args()))

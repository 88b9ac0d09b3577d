"""Loads .h5 files in tf_keras and in Keras 3, and computes with the models.

  PYTHON load_h5_files.py FOLDER

FOLDER has a file NAME.npz for each NAME.h5: the inputs (x0, x1, ...), the labels (t0, ...), and the
number of steps of training. Prints a JSON object: for each library and file, what it computes.
"""

import importlib
import json
import os
import sys
import warnings

os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'

import numpy as np  # noqa: E402


def make_own_layer(keras):
  """Returns a layer as users write it; the library calls it like its own layers."""
  class Scale(keras.layers.Layer):

    def __init__(self, factor, initializer='ones', **options):
      super().__init__(**options)
      self.factor = factor
      self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape):
      self.offset = self.add_weight(name='offset', shape=(input_shape[-1],),
                                    initializer=self.initializer)
      super().build(input_shape)

    def call(self, inputs):
      return inputs * self.factor + self.offset

    def get_config(self):
      return dict(super().get_config(), factor=self.factor,
                  initializer=keras.initializers.serialize(self.initializer))

  return Scale


def compute(model, path):
  """Returns the outputs, the losses of `evaluate` and of steps of training if compiled, and the
  number of updates of a step in TensorFlow 1.15.
  """
  with np.load(path[:-len('.h5')] + '.npz') as data:
    inputs, labels = ([data[name] for name in data.files if name[0] == kind] for kind in 'xt')
    num_steps = int(data['steps'])
  if len(inputs) == 1:
    inputs, = inputs
  if len(labels) == 1:
    labels, = labels
  outputs = model.predict(inputs, verbose=0)
  assert isinstance(outputs, list) == isinstance(labels, list), type(outputs)
  losses = []
  if getattr(model, 'optimizer', None):
    losses = [model.evaluate(inputs, labels, verbose=0)]
    losses += [model.train_on_batch(inputs, labels) for _ in range(num_steps)]
  return {'outputs': np.concatenate([np.ravel(output) for output in (
      outputs if isinstance(outputs, list) else [outputs])]).tolist(),
          'losses': [float(np.ravel(loss)[0]) for loss in losses],
          'updates': len(getattr(model, 'updates', ()))}


def load_and_compute(keras, path, is_eager=True):
  """Returns what a file computes, loaded without and with its compilation."""
  custom_objects = {'Scale': make_own_layer(keras)} if 'own_layer' in path else None
  models = [keras.models.load_model(path, custom_objects=custom_objects, compile=is_compiled)
            for is_compiled in (False, True)]
  models[1].run_eagerly = is_eager  # Tracing functions takes longer than running them.
  return [compute(model, path) for model in models]


def main(folder):
  warnings.simplefilter('ignore')
  results = {}
  for client in ('tf_keras', 'keras'):
    keras = importlib.import_module(client)
    for name in sorted(name for name in os.listdir(folder) if name.endswith('.h5')):
      keras.backend.clear_session()
      results['{} {}'.format(client, name)] = load_and_compute(keras, os.path.join(folder, name))
  print(json.dumps(results))


if __name__ == '__main__':
  main(*sys.argv[1:])

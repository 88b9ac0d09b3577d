"""Loads .h5 files in tf_keras and in Keras 3, and computes with the models.

  PYTHON load_h5_files.py FOLDER

FOLDER has a file NAME.npz for each NAME.h5: the inputs (x0, x1, ...), the labels, and the number of
steps of training. Prints a JSON object: for each library and file, what it computes.
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
  class Scale(keras.layers.Dense):

    def __init__(self, units, factor, **options):
      super().__init__(units, **options)
      self.factor = factor

    def call(self, inputs):
      return super().call(inputs) * self.factor

    def get_config(self):
      return dict(super().get_config(), factor=self.factor)

  return Scale


def compute(model, path):
  """Returns the outputs, the losses of `evaluate` and of steps of training if compiled, and the
  number of updates of a step in TensorFlow 1.15.
  """
  with np.load(path[:-len('.h5')] + '.npz') as data:
    inputs = [data[name] for name in data.files if name[0] == 'x']
    labels, num_steps = data['labels'], int(data['steps'])
  if len(inputs) == 1:
    inputs, = inputs
  outputs = model.predict(inputs, verbose=0)
  losses = []
  if getattr(model, 'optimizer', None):
    losses = [model.evaluate(inputs, labels, verbose=0)]
    losses += [model.train_on_batch(inputs, labels) for _ in range(num_steps)]
  return {'outputs': outputs.tolist(),
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

"""Loads .h5 files in tf_keras and in Keras 3; compares the results with those of TensorFlow 1.15.

  PYTHON load_h5_files.py FOLDER

FOLDER has a file NAME.npz for each NAME.h5: the inputs (x0, x1, ...), the outputs (y0, ...), the
labels (t0, ...), the loss on these examples, and the losses of two steps of training. Prints a JSON
object: for each library and file the largest differences, or the exception.
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


def as_list(value):
  return value if isinstance(value, list) else [value]


def unpack(values):
  return values[0] if len(values) == 1 else values


def read(data, prefix):
  names = sorted(name for name in data.files if name.startswith(prefix) and name[1:].isdigit())
  return [data[name] for name in names]


def difference(outputs, expected):
  """Returns the largest difference of outputs, relative to the largest expected value."""
  assert [np.shape(output) for output in outputs] == [output.shape for output in expected]
  return max(float(np.abs(output - value).max() / np.abs(value).max())
             for output, value in zip(outputs, expected))


def losses_of(results):
  """Returns the total losses from the results of `evaluate` or `train_on_batch`."""
  return [float(as_list(result)[0]) for result in results]


def check(keras, path, is_eager=True):
  """Returns the largest relative differences of the outputs, the loss and the training."""
  with np.load(path[:-len('.h5')] + '.npz') as data:
    inputs, expected, labels = (read(data, prefix) for prefix in 'xyt')
    expected_loss, expected_steps = float(data['loss']), data.get('steps')
  custom_objects = {'Scale': make_own_layer(keras)} if 'own_layer' in path else None
  found = {}
  for is_compiled in (False, True):
    model = keras.models.load_model(path, custom_objects=custom_objects, compile=is_compiled)
    if is_compiled or not is_eager:
      outputs = model.predict(unpack(inputs), verbose=0)
    else:
      outputs = model(unpack(inputs))
    assert isinstance(outputs, list) == (len(expected) > 1), type(outputs)
    found['compiled' if is_compiled else 'uncompiled'] = difference(as_list(outputs), expected)
  model.run_eagerly = is_eager  # Tracing functions takes longer than running them.
  loss, = losses_of([model.evaluate(unpack(inputs), unpack(labels), verbose=0)])
  found['loss'] = abs(loss / expected_loss - 1)
  if expected_steps is not None:
    steps = losses_of(model.train_on_batch(unpack(inputs), unpack(labels)) for _ in range(2))
    found['training'] = float(np.abs(np.divide(steps, expected_steps) - 1).max())
  return found


def main(folder):
  warnings.simplefilter('ignore')
  results = {}
  for client in ('tf_keras', 'keras'):
    keras = importlib.import_module(client)
    results[client] = {}
    for name in sorted(os.listdir(folder)):
      if name.endswith('.h5'):
        keras.backend.clear_session()
        try:
          results[client][name[:-len('.h5')]] = check(keras, os.path.join(folder, name))
        except Exception as error:
          results[client][name[:-len('.h5')]] = {'error': repr(error)}
  print(json.dumps(results))


if __name__ == '__main__':
  main(*sys.argv[1:])

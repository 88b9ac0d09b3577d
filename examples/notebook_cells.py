"""Converts and trains a model in a notebook, whose cells may be executed again in any order.

  jupyter notebook  # Paste each cell, or execute this file: python examples/notebook_cells.py

`# %%` starts a cell. A cell that builds the model again gives its layers other names only if they
have none, so the layers are named. Each execution of the last cell resumes from its checkpoint.
"""

# %%
import tempfile

import numpy as np
import tensorflow as tf

import estimator_train

MODEL_DIR = tempfile.mkdtemp()


# %%
def make_input():
  random = np.random.RandomState(1)
  numbers = random.normal(size=(512, 4)).astype(np.float32)
  classes = np.eye(2, dtype=np.float32)[(numbers.sum(-1) > 0).astype(int)]
  return tf.data.Dataset.from_tensor_slices((numbers, classes)).repeat().batch(64)


# %%
model = tf.keras.Sequential([
    tf.keras.layers.Dense(16, activation='relu', input_shape=(4,), name='hidden'),
    tf.keras.layers.Dense(2, activation='softmax', name='classes')])
model.compile('adam', 'categorical_crossentropy')

# %%
time_history = estimator_train.TimeHistory(batch_size=64)
estimator = estimator_train.convert(model, model_dir=MODEL_DIR)
estimator.train(make_input, steps=100, hooks=[time_history])
print(estimator.evaluate(make_input, steps=8)['accuracy'])
print(time_history.report()['step_secs'])

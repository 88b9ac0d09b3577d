"""Regression on a table of numbers and categories, with feature columns. In a clone:

    ./run_train.sh --dataset=examples.tabular:dataset \
        --model=examples.tabular:model --model_dir=runs/tabular --train_epochs=20 --batch_size=64 \
        --eval_every_steps=250 --best_metric=mean_absolute_error

The page runs/tabular/report/index.html shows predicted and true prices. Predictions as CSV:

    ./run_train.sh --mode=predict --model_dir=runs/tabular \
        --output=runs/tabular/prices.csv
"""

import numpy as np
import tensorflow.compat.v1 as tf

import estimator_train

CITIES = ['Bern', 'Lagos', 'Lima', 'Oslo', 'Seoul']


def read_table(seed, num_rows):
  """Returns columns and the price of each row. Your own function would read a CSV file."""
  random = np.random.RandomState(seed)
  city = random.randint(len(CITIES), size=num_rows)
  rooms = random.randint(1, 7, num_rows).astype(np.float32)
  area = (rooms * random.uniform(15, 30, num_rows)).astype(np.float32)
  price = area * (2 + .5 * city) + 20 * rooms + random.normal(0, 10, num_rows)
  return ({'area': area, 'rooms': rooms, 'city': np.array(CITIES)[city]},
          (price / 100).astype(np.float32))


def training_examples():
  return tf.data.Dataset.from_tensor_slices(read_table(1, 4000))


def test_examples():
  return tf.data.Dataset.from_tensor_slices(read_table(2, 1000))


def dataset():
  return estimator_train.DataSet('table', labels=(), image_shape=None,
                                 train=estimator_train.ExampleSplit(training_examples),
                                 test=estimator_train.ExampleSplit(test_examples))


def model():
  columns = [
      tf.feature_column.numeric_column('area', normalizer_fn=lambda area: area / 100),
      tf.feature_column.numeric_column('rooms'),
      tf.feature_column.embedding_column(
          tf.feature_column.categorical_column_with_vocabulary_list('city', CITIES), 3)]
  inputs = {'area': tf.keras.Input([], name='area'), 'rooms': tf.keras.Input([], name='rooms'),
            'city': tf.keras.Input([], dtype=tf.string, name='city')}
  hidden = tf.keras.layers.DenseFeatures(columns)(inputs)
  hidden = tf.keras.layers.Dense(32, 'relu')(hidden)
  price = tf.keras.layers.Dense(1, name='price')(hidden)
  result = tf.keras.Model(list(inputs.values()), price)
  result.compile(tf.keras.optimizers.Adam(.01), 'mse', ['mean_absolute_error'])
  return result


if __name__ == '__main__':
  print(__doc__)  # The commands that use this module.

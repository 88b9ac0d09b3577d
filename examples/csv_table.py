"""Regression on a CSV file with numbers, categories and text. In a clone:

    ./run_train.sh --dataset=examples.csv_table:dataset \
        --model=examples.csv_table:model --model_dir=runs/csv_table --train_epochs=60 \
        --batch_size=32 --eval_every_steps=150 --best_metric=mean_absolute_error

Predict the prices of new rows, of a file with the same columns but without a price:

    ./run_train.sh --mode=predict --model_dir=runs/csv_table \
        --input=examples/csv_table_new.csv --output=runs/csv_table/prices.csv
"""

import csv
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

import estimator_train

FILE = Path(__file__).with_name('csv_table.csv')
CITIES = ['Bern', 'Lagos', 'Lima', 'Oslo', 'Seoul']


def read_table(is_test):
  """Returns the columns and the price of each row. Every fifth row is for testing."""
  with FILE.open(encoding='utf-8', newline='') as file:
    rows = [row for number, row in enumerate(csv.DictReader(file)) if (number % 5 == 0) == is_test]
  columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
  for name in ('area', 'rooms', 'price'):
    columns[name] = columns[name].astype(np.float32)
  price = columns.pop('price')
  return columns, price


def training_examples():
  return tf.data.Dataset.from_tensor_slices(read_table(is_test=False))


def test_examples():
  return tf.data.Dataset.from_tensor_slices(read_table(is_test=True))


def dataset():
  return estimator_train.DataSet('csv_table', labels=(), image_shape=None,
                                 train=estimator_train.ExampleSplit(training_examples),
                                 test=estimator_train.ExampleSplit(test_examples))


def split_words(texts):
  """Converts texts, string [B], to words, string [B, words]; '' fills short texts up."""
  import tensorflow.compat.v1 as tf  # Here, since Keras stores this function in model.h5.
  return tf.strings.split(texts, result_type='RaggedTensor').to_tensor('')


def model():
  column = tf.feature_column
  columns = [
      column.numeric_column('area', normalizer_fn=lambda area: area / 100),
      column.numeric_column('rooms'),
      column.embedding_column(column.categorical_column_with_vocabulary_list('city', CITIES), 3),
      column.embedding_column(column.categorical_column_with_hash_bucket('words', 1000), 4)]
  inputs = {'area': tf.keras.Input([], name='area'), 'rooms': tf.keras.Input([], name='rooms'),
            'city': tf.keras.Input([], dtype=tf.string, name='city'),
            'description': tf.keras.Input([], dtype=tf.string, name='description')}
  words = tf.keras.layers.Lambda(split_words)(inputs['description'])
  hidden = tf.keras.layers.DenseFeatures(columns)(dict(inputs, words=words))
  hidden = tf.keras.layers.Dense(32, 'relu')(hidden)
  price = tf.keras.layers.Dense(1, name='price')(hidden)
  result = tf.keras.Model(list(inputs.values()), price)
  result.compile(tf.keras.optimizers.Adam(.01), 'mse', ['mean_absolute_error'])
  return result


if __name__ == '__main__':
  print(__doc__)  # The commands that use this module.

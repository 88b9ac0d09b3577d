"""A model with two inputs and two outputs, on TFRecords of its own schema. In a clone:

    ./run_train.sh --dataset=examples.two_outputs:dataset --data_dir=runs/homes \
        --model=examples.two_outputs:model --model_dir=runs/two_outputs --train_epochs=10 \
        --batch_size=64 --eval_every_steps=150 --best_metric=price_loss

The records are written first. The page runs/two_outputs/report/index.html shows each output.
"""

import os

import numpy as np
import tensorflow.compat.v1 as tf

import estimator_train

SCHEMA = {'pixels': tf.io.FixedLenFeature([64], tf.float32),
          'area': tf.io.FixedLenFeature([1], tf.float32),
          'price': tf.io.FixedLenFeature([1], tf.float32),
          'kind': tf.io.FixedLenFeature([], tf.int64)}


def write_records(folder, num_shards=4, num_records=1000):
  """Writes records of a picture, an area, a price and a kind: 0 flat, 1 house or 2 castle."""
  os.makedirs(folder)
  random = np.random.RandomState(1)
  for shard in range(num_shards):
    path = os.path.join(folder, 'homes-{}-of-{}'.format(shard, num_shards))
    with tf.io.TFRecordWriter(path) as file:
      for _ in range(num_records):
        kind, area = random.randint(3), random.uniform(.2, 2)
        pixels = random.normal(.3 * kind, .5, 64)
        price = area * (1 + kind) + random.normal(0, .1)
        features = {name: tf.train.Feature(float_list=tf.train.FloatList(value=values))
                    for name, values in (('pixels', pixels), ('area', [area]), ('price', [price]))}
        features['kind'] = tf.train.Feature(int64_list=tf.train.Int64List(value=[kind]))
        file.write(tf.train.Example(
            features=tf.train.Features(feature=features)).SerializeToString())


def parse_batch(records):
  """Returns the features by the names of the inputs, and the labels by the names of the outputs."""
  values = tf.io.parse_example(records, SCHEMA)
  return ({'picture': tf.reshape(values['pixels'], [-1, 8, 8, 1]), 'area': values['area']},
          {'price': values['price'], 'kind': values['kind']})


def dataset(settings):
  if not os.path.exists(settings.data.data_dir):
    write_records(settings.data.data_dir)
  train, test = (estimator_train.RecordSplit(os.path.join(settings.data.data_dir, pattern),
                                             parse_batch=parse_batch)
                 for pattern in ('homes-[0-2]-of-4', 'homes-3-of-4'))
  return estimator_train.DataSet('homes', labels=(), image_shape=None, train=train, test=test)


def model():
  layers = tf.keras.layers
  picture, area = layers.Input([8, 8, 1], name='picture'), layers.Input([1], name='area')
  hidden = layers.Flatten()(layers.Conv2D(8, 3, activation='relu')(picture))
  hidden = layers.Dense(32, 'relu')(layers.concatenate([hidden, area]))
  price = layers.Dense(1, name='price')(hidden)
  kind = layers.Dense(3, 'softmax', name='kind')(hidden)
  result = tf.keras.Model([picture, area], [price, kind])
  result.compile('adam', {'price': 'mse', 'kind': 'sparse_categorical_crossentropy'},
                 {'price': ['mae'], 'kind': ['accuracy']}, {'price': 1., 'kind': .5})
  return result


if __name__ == '__main__':
  print(__doc__)  # The commands that use this module.

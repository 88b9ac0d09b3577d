"""Classification of sentences by a model that reads raw text. In a clone:

    ./run_train.sh --dataset=examples.text:dataset \
        --model=examples.text:model --model_dir=runs/text --train_epochs=4 --batch_size=64 \
        --eval_every_steps=60 --best_metric=average_loss

The data set has classes, so that the page runs/text/report/index.html shows the accuracy and the
confusion matrix. The flags --optimizer, --learning_rate and --class_weights apply to this model,
which is not compiled. The model itself converts sentences to words. Sentences are therefore
classified as they are, also by an exported model. Classify those of a file:

    ./run_train.sh --mode=predict --model_dir=runs/text \
        --input=examples/text_new.csv --output=runs/text/classes.csv
"""

import random

import tensorflow.compat.v1 as tf

import estimator_train

TEMPLATES = {
    'praise': ['I really {} like this {}!', 'What a {}, wonderful {}', 'The {} {} was a great joy'],
    'complaint': ['I do {} not like this {}.', 'What a {}, terrible {}', 'The {} {} was broken'],
    'question': ['Does the {} {} work at all?', 'Where can I buy a {} {}', 'Is this {} {} good'],
}
ADJECTIVES = ['small', 'large', 'new', 'red', 'quiet', 'cheap']
NOUNS = ['phone', 'film', 'chair', 'book', 'coffee', 'garden', 'song']


def sentences(seed, count):
  """Yields sentences and their classes. Your own function would read a text file."""
  generator = random.Random(seed)
  for _ in range(count):
    class_index = generator.randrange(len(TEMPLATES))
    template = generator.choice(list(TEMPLATES.values())[class_index])
    if generator.random() < .05:
      class_index = generator.randrange(len(TEMPLATES))  # A wrong label.
    yield template.format(generator.choice(ADJECTIVES), generator.choice(NOUNS)), class_index


def make_dataset(seed, count):
  return tf.data.Dataset.from_generator(
      lambda: sentences(seed, count), (tf.string, tf.int64), ([], []))


def training_examples():
  return make_dataset(1, 3000)


def test_examples():
  return make_dataset(2, 500)


def dataset():
  return estimator_train.DataSet('sentences', labels=tuple(TEMPLATES), image_shape=None,
                                 train=estimator_train.ExampleSplit(training_examples, 3000),
                                 test=estimator_train.ExampleSplit(test_examples, 500))


def tokenize(texts, num_ids, length):
  """Converts texts, string [B], to ids of their words, int64 [B, length].

  The ids are 1 to num_ids - 1. Short texts end with zeros; long texts are cut.
  """
  import tensorflow.compat.v1 as tf  # Here, since Keras stores this function in model.h5.
  words = tf.strings.split(tf.strings.regex_replace(tf.strings.lower(texts), r'[^\w\s]', ' '),
                           result_type='RaggedTensor')
  ids = tf.ragged.map_flat_values(tf.strings.to_hash_bucket_fast, words, num_ids - 1)
  padded = tf.pad((ids + 1).to_tensor(), [[0, 0], [0, length]])[:, :length]
  return tf.ensure_shape(padded, [None, length])


def model():
  num_ids, length = 1000, 12
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.InputLayer([], dtype=tf.string, name='sentence'),
      layers.Lambda(tokenize, arguments={'num_ids': num_ids, 'length': length}),
      layers.Embedding(num_ids, 16),
      layers.Conv1D(32, 3, activation='relu'),
      layers.GlobalMaxPooling1D(),
      layers.Dense(len(TEMPLATES), 'softmax')])


if __name__ == '__main__':
  print(__doc__)  # The commands that use this module.

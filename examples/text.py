"""Classification of sentences: token ids, an embedding and a convolution. In a clone:

    ./run_train.sh --dataset=examples.text:dataset \
        --model=examples.text:model --model_dir=runs/text --train_epochs=4 --batch_size=64 \
        --eval_every_steps=60 --best_metric=average_loss

The data set has classes, so that the page runs/text/report/index.html shows the accuracy and the
confusion matrix. The flags --optimizer, --learning_rate and --class_weights apply to this model,
which is not compiled.
"""

import random

import tensorflow.compat.v1 as tf

import estimator_train

LENGTH, NUM_WORDS = 12, 1000
TEMPLATES = {
    'praise': ['I really {} like this {}', 'what a {} wonderful {}', 'the {} {} was a great joy'],
    'complaint': ['I do {} not like this {}', 'what a {} terrible {}', 'the {} {} was broken'],
    'question': ['does the {} {} work at all', 'where can I buy a {} {}', 'is this {} {} any good'],
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


def tokenize(sentence, class_index):
  """Converts words to ids from 1 to NUM_WORDS - 1; 0 fills the sentence up to LENGTH words."""
  words = tf.string_split([sentence]).values[:LENGTH]
  ids = 1 + tf.strings.to_hash_bucket_fast(words, NUM_WORDS - 1)
  return tf.reshape(tf.pad(ids, [[0, LENGTH - tf.size(ids)]]), [LENGTH]), class_index


def make_dataset(seed, count):
  return tf.data.Dataset.from_generator(
      lambda: sentences(seed, count), (tf.string, tf.int64), ([], [])).map(tokenize)


def training_examples():
  return make_dataset(1, 3000)


def test_examples():
  return make_dataset(2, 500)


def dataset():
  return estimator_train.DataSet('sentences', labels=tuple(TEMPLATES), image_shape=None,
                                 train=estimator_train.ExampleSplit(training_examples, 3000),
                                 test=estimator_train.ExampleSplit(test_examples, 500))


def model():
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.InputLayer([LENGTH], dtype=tf.int64, name='ids'),
      layers.Embedding(NUM_WORDS, 16),
      layers.Conv1D(32, 3, activation='relu'),
      layers.GlobalMaxPooling1D(),
      layers.Dense(len(TEMPLATES), 'softmax')])


if __name__ == '__main__':
  print(__doc__)  # The commands that use this module.

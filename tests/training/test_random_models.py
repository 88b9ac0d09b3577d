"""`convert` trains, evaluates and predicts random models like Keras.

  TESTS_RANDOM_MODELS=300 tests/run.sh tests/training/test_random_models.py

compares more of them than the 40 of `tests/run.sh --all`.
"""

import functools
import os
import random
from typing import NamedTuple, Tuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from like_keras import SESSION_CONFIG, Scale, ScaledMean, compare, in_batches

keras = tf.keras
layers = tf.keras.layers
pytestmark = pytest.mark.usefixtures('own_graph')

EXAMPLES, BATCH_SIZE = 12, 4
NUM_RANDOM = int(os.environ.get('TESTS_RANDOM_MODELS', '40'))


class Head(NamedTuple):
  """An output of a model: a key of HEADS, and the indices of its loss and metrics there."""
  kind: str = 'number'
  loss: int = 0
  metrics: Tuple[int, ...] = ()
  weighted_metrics: Tuple[int, ...] = ()


class Case(NamedTuple):
  """The choices that make a model, its compilation and its data; by default the simplest."""
  topology: str = 'functional'
  inputs: Tuple[str, ...] = ('vector',)
  body: Tuple[str, ...] = ('dense',)
  heads: Tuple[Head, ...] = (Head(),)
  extras: Tuple[str, ...] = ()
  optimizer: int = 0
  form: str = 'tuple'  # Of the features, labels, losses, metrics and sample weights; or `dict`.
  weights: str = 'none'
  is_built: bool = True
  is_static: bool = False
  label_columns: bool = True  # Labels [B, 1] instead of [B].
  has_double_labels: bool = False
  eval_batch_size: int = EXAMPLES
  replicas: int = 1
  predicts: bool = True


def spread(shape, dtype=None, partition_info=None):
  """An initializer that gives equal weights in all graphs."""
  numbers = tf.cast(tf.range(1, int(np.prod(shape)) + 1), dtype or tf.float32)
  return tf.reshape(.5 * tf.sin(1.7 * numbers), shape)


def dense(units=4, activation='tanh', **options):
  return layers.Dense(units, activation, kernel_initializer=spread, **options)


def squares(values):
  return .01 * tf.reduce_sum(tf.square(tf.cast(values, tf.float32)))


class Block(layers.Layer):
  """A layer with layers, a weight, losses and a metric."""

  def __init__(self, **options):
    super().__init__(**options)
    self.parts = [dense(), Scale(.7)]

  def build(self, shape):
    self.late = dense(activation=None)
    self.gain = self.add_weight('gain', [4], initializer='ones', regularizer=squares)
    super().build(shape)

  def call(self, inputs):
    self.add_loss(.1 * tf.reduce_mean(tf.square(inputs)), inputs=True)
    self.add_metric(tf.reduce_mean(inputs, -1), name='of_layer', aggregation='mean')
    return inputs * self.gain + self.late(apply(self.parts, inputs))


class Inner(keras.Model):
  """A subclassed model for the inside of other models."""

  def __init__(self, *parts):
    super().__init__()
    self.parts = list(parts)

  def call(self, inputs):
    return apply(self.parts, inputs)


def scaled_later():
  layer = Scale()
  layer.factor = .6
  return layer


def two_uses():
  inputs, shared = layers.Input((4,)), dense()
  return keras.Model(inputs, layers.add([shared(inputs), shared(layers.Lambda(tf.sin)(inputs))]))


LAYERS = {
    'dense': dense,
    'leaky': lambda: dense(activation=tf.nn.leaky_relu, use_bias=False),
    'own': lambda: dense(activation=lambda values: tf.nn.softsign(2 * values)),
    'regularized': lambda: dense(kernel_regularizer=squares, bias_constraint='non_neg',
                                 activity_regularizer=keras.regularizers.l2(.01)),
    'batch_norm': layers.BatchNormalization,
    'dropout': lambda: layers.Dropout(.3, seed=7),
    'lambda': lambda: layers.Lambda(lambda values: values * .5 + tf.tanh(values)),
    'tf_function': lambda: layers.Lambda(tf.nn.l2_normalize, arguments={'axis': -1}),
    'scale': lambda: Scale(.8),
    'scaled_later': scaled_later,
    'block': Block,
    'frozen': lambda: dense(trainable=False),
    'sequential': lambda: keras.Sequential([dense(input_shape=(4,)), Scale(.9)]),
    'functional': two_uses,
    'subclass': lambda: Inner(dense(), Scale(.9)),
    'recurrent': lambda: keras.Sequential([layers.Reshape((2, 2)), layers.SimpleRNN(
        4, unroll=True, kernel_initializer=spread, recurrent_initializer=spread)]),
}
INPUTS = {  # The shape and type of an example.
    'vector': ((4,), 'float32'), 'double': ((4,), 'float64'), 'scalar': ((), 'float32'),
    'column': ((1,), 'float32'), 'ids': ((2,), 'int32')}


def make_stem(kind):
  """Returns the layers that make [B, 4] of an input."""
  return [dense()] if kind != 'ids' else [layers.Embedding(
      5, 2, embeddings_initializer=spread, input_length=2), layers.Flatten()]


def per_example(true, outputs):
  return tf.reduce_sum(tf.abs(tf.cast(true, outputs.dtype) - outputs), -1)


def whole_batch(true, outputs):
  return tf.reduce_mean(tf.square(tf.cast(true, outputs.dtype) - outputs))


def of_logits(true, outputs):
  return keras.losses.sparse_categorical_crossentropy(true, outputs, from_logits=True)


REGRESSION = (
    ('mse', keras.losses.mean_absolute_error, 'logcosh', per_example, whole_batch),
    ('mae', keras.metrics.mean_squared_error, keras.metrics.RootMeanSquaredError, per_example,
     functools.partial(ScaledMean, 2.), keras.metrics.LogCoshError, whole_batch))
HEADS = {  # Units, activation, labels, losses, and metrics (classes make a new object).
    'number': (1, None, lambda random: random.normal(size=(EXAMPLES, 1)), *REGRESSION),
    'numbers': (3, None, lambda random: random.normal(size=(EXAMPLES, 3)),
                (keras.losses.Huber(.5), *REGRESSION[0]), REGRESSION[1]),
    'binary': (1, 'sigmoid', lambda random: random.randint(2, size=(EXAMPLES, 1)),
               ('binary_crossentropy', keras.losses.BinaryCrossentropy(label_smoothing=.1)),
               ('accuracy', 'acc', keras.metrics.binary_accuracy, keras.metrics.AUC)),
    'classes': (3, 'softmax', lambda random: np.eye(3)[random.randint(3, size=EXAMPLES)],
                ('categorical_crossentropy', keras.losses.categorical_crossentropy, 'kld',
                 keras.losses.CategoricalCrossentropy(label_smoothing=.1)),
                ('accuracy', 'acc', keras.metrics.categorical_crossentropy,
                 functools.partial(keras.metrics.TopKCategoricalAccuracy, 2))),
    'indices': (3, None, lambda random: random.randint(3, size=(EXAMPLES, 1)),
                (keras.losses.SparseCategoricalCrossentropy(from_logits=True), of_logits),
                (keras.metrics.SparseCategoricalAccuracy, of_logits,
                 functools.partial(keras.metrics.SparseTopKCategoricalAccuracy, 2))),
}


BATCH_DEPENDENT = {'batch_norm', 'dropout'}
FOR_ONE_REPLICA = (keras.optimizers.Nadam, tf.train.ProximalAdagradOptimizer)
# Classes and options. Epsilon is large, because small values enlarge rounding errors.
RATE = {'learning_rate': .05}
OPTIMIZERS = [
    (keras.optimizers.SGD, dict(RATE, momentum=.9, nesterov=True)),
    (keras.optimizers.SGD, dict(RATE, clipnorm=.1)),
    (keras.optimizers.SGD, {'learning_rate': keras.optimizers.schedules.PiecewiseConstantDecay(
        [0, 1], [.2, .05, .1])}),
    (keras.optimizers.Adam, dict(RATE, epsilon=.1, amsgrad=True, decay=.5, clipvalue=.01)),
    (keras.optimizers.RMSprop, dict(RATE, epsilon=.1, momentum=.5, centered=True)),
    (keras.optimizers.Nadam, dict(RATE, epsilon=.1)),
    (keras.optimizers.Ftrl, dict(RATE, l2_regularization_strength=.01)),
    (tf.train.AdamOptimizer, dict(RATE, epsilon=.1)),
    (tf.train.MomentumOptimizer, dict(RATE, momentum=.9, use_nesterov=True)),
    (tf.train.RMSPropOptimizer, dict(RATE, momentum=.5, epsilon=.1)),
    (tf.train.ProximalAdagradOptimizer, RATE)]
SEQUENTIALS = ['sequential', 'sequential_without_shape', 'sequential_uses_twice']
FUNCTIONALS = ['functional', 'functional_shared', 'functional_nested']
SUBCLASSES = ['subclass', 'subclass_of_lists', 'subclass_of_models', 'subclass_with_config',
              'subclass_that_forgets']
USES_TWICE = ['sequential_uses_twice', 'functional_shared', 'functional_nested']


SIMPLEST = Case()


class Network(keras.Model):
  """A subclassed model with layers in attributes, lists, dicts or models."""

  def __init__(self, case=SIMPLEST):
    super().__init__()
    self.case, body = case, [LAYERS[name]() for name in case.body]
    self.first, self.stems = Scale(.9), [make_stem(kind) for kind in case.inputs]
    self.heads = {str(index): dense(*HEADS[head.kind][:2]) for index, head in enumerate(case.heads)}
    self.body = {'subclass_of_lists': lambda: [body[:1], {'rest': body[1:]}],
                 'subclass_of_models': lambda: [
                     Inner(*body[:1]), keras.Sequential(body[1:] + [dense()])]}.get(
                         case.topology, lambda: body)()

  def call(self, inputs):
    if isinstance(inputs, dict):
      inputs = [inputs[name] for name in sorted(inputs)]
    inputs = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    values = connect(inputs, self.stems, [self.first, *tf.nest.flatten(self.body)], self.case)
    outputs = [head(values) for _, head in sorted(self.heads.items())]
    return outputs if len(outputs) > 1 else outputs[0]

  def get_config(self):
    if self.case.topology not in ('subclass_with_config', 'subclass_that_forgets'):
      raise NotImplementedError
    return {'case': self.case} if self.case.topology == 'subclass_with_config' else {}

  @classmethod
  def from_config(cls, config):
    return cls(**config)


def apply(parts, values):
  for layer in parts:
    values = layer(values)
  return values


def connect(inputs, stems, body, case):
  """Applies a body to the sum of the inputs, or to each of them and once more."""
  values = [apply(stem, value) for stem, value in zip(stems, inputs)]
  if case.topology == 'functional_shared':
    return layers.add([apply(body, value) for value in [*values, values[0]]])
  return apply(body, layers.add(values) if len(values) > 1 else values[0])


def build(case):
  """Returns a model that is not compiled."""
  if case.topology in SUBCLASSES:
    return Network(case)
  body, stems = [LAYERS[name]() for name in case.body], [make_stem(kind) for kind in case.inputs]
  heads = [dense(*HEADS[head.kind][:2], name='out{}'.format(index))
           for index, head in enumerate(case.heads)]
  shapes = [(INPUTS[kind][0] or (1,), 'int32' if kind == 'ids' else 'float32')
            for kind in case.inputs]
  if case.topology in SEQUENTIALS:
    first = [] if case.topology == 'sequential_without_shape' else [
        layers.InputLayer(shapes[0][0], dtype=shapes[0][1])]
    return keras.Sequential([
        *first, *stems[0], *body * (1 + (case.topology == 'sequential_uses_twice')), *heads])
  inputs = [layers.Input(shape, dtype=dtype) for shape, dtype in shapes]
  if case.topology == 'functional_nested':
    inner_inputs = layers.Input((4,))
    body = [keras.Model(inner_inputs, apply(body, inner_inputs))] * 2
  values = connect(inputs, stems, body, case)
  model = keras.Model(inputs, [head(values) for head in heads])
  if 'loss_tensor' in case.extras:
    model.add_loss(.1 * tf.reduce_mean(tf.square(values)))
  if 'metric_tensor' in case.extras:
    model.add_metric(tf.reduce_mean(values, -1), name='of_model', aggregation='mean')
  return model


def compile_model(model, case, names):
  """Compiles a model with the losses and metrics of a case."""
  def choose_metrics(name):
    return in_form([[
        value() if isinstance(value, (type, functools.partial)) else value for value in (
            HEADS[head.kind][4][index] for index in getattr(head, name))]
                    for head in case.heads], names, case.form, list)

  if 'loss_callable' in case.extras:
    model.add_loss(lambda: tf.add_n([squares(weight) for weight in model.trainable_weights]))
  optimizer, options = OPTIMIZERS[case.optimizer]
  model.compile(optimizer(**options), in_form([
      HEADS[head.kind][3][head.loss] for head in case.heads], names, case.form, list),
                choose_metrics('metrics'), weighted_metrics=choose_metrics('weighted_metrics'))


def in_form(values, names, form, several=tuple):
  """Returns values of inputs or outputs as a dict, a tuple or, if there is one, alone."""
  if form == 'dict' and names:
    return dict(zip(names, values))
  return values[0] if len(values) == 1 else several(values)


def make_data(case, is_known):
  """Returns the features and labels, lists of arrays, and the sample weights, a list or None."""
  random = np.random.RandomState(3)
  features, labels = [], []
  for shape, dtype in (INPUTS[kind] for kind in case.inputs):
    values = (random.randint(5, size=(EXAMPLES, *shape)) if dtype == 'int32' else
              random.normal(size=(EXAMPLES, *shape)))
    # A model without known inputs takes the type of a data set, which Keras converts in arrays.
    features.append(values.astype('float32' if dtype == 'float64' and not is_known else dtype))
  for head in case.heads:
    values = HEADS[head.kind][2](random)
    values = values if values.dtype != float or case.has_double_labels else np.float32(values)
    labels.append(values if values.shape[1] > 1 or case.label_columns else values[:, 0])
  weights = [random.uniform(.2, 2, size=EXAMPLES).astype(np.float32) for _ in case.heads]
  return features, labels, {
      'none': None, 'each': weights, 'one': weights[:1] * len(weights)}[case.weights]


def check(case, folder):
  """Compares an Estimator of a case with Keras."""
  tf.set_random_seed(1)
  keras.backend.set_session(tf.Session(config=SESSION_CONFIG))
  model = build(case)
  names = getattr(model, 'output_names', None) or [
      'output_{}'.format(index + 1) for index in range(len(case.heads))]
  compile_model(model, case, names)
  is_subclass, is_known = case.topology in SUBCLASSES, bool(model.inputs)
  features, labels, weights = make_data(case, case.is_built or is_known)
  input_names = ['in0', 'in1'] if is_subclass else getattr(model, 'input_names', None)
  keras_features = in_form(features, input_names, case.form if is_subclass else 'tuple', list)
  if case.is_built:
    if not is_known:
      model.predict_on_batch(keras_features)
    random = np.random.RandomState(5)
    model.set_weights([weight + random.uniform(.01, .1, size=weight.shape)
                       for weight in model.get_weights()])
    input_names = input_names if is_subclass else model.input_names
  values, arrays = in_form(features, input_names, case.form), (keras_features, labels)
  if weights is not None:
    arrays += weights,
    values = {'features': values, 'sample_weights': (
        weights[0] if case.weights == 'one' else in_form(weights, names, case.form))}

  def make_input_fn(batch_size):
    return in_batches((values, in_form(labels, names, case.form)), min(batch_size, EXAMPLES),
                      drop_remainder=case.is_static and batch_size != 8)

  compare(model, folder, arrays, make_input_fn, batch_size=BATCH_SIZE, replicas=[case.replicas],
          eval_batch_size=case.eval_batch_size, predicts=case.predicts, seed=1,
          # TensorFlow updates a moving average twice in a step, in any order: m - (m - b) / 100
          # differs by up to (m - b) / 10,000, in Keras as well.
          tolerance=1e-3 if 'batch_norm' in case.body and case.topology in USES_TWICE else 1e-5,
          # Keras counts one use of a layer only, and gives the value of a layer in an inner model
          # the name of the next metric.
          uncompared=(['of_layer'] if case.topology in USES_TWICE else [])
          + (['of_model'] if case.topology == 'functional_nested' else []))


def random_case(random):
  """Chooses a case; the choices are independent, so that few models are alike."""
  def subset(values, least, most):
    return tuple(random.sample(list(values), random.randint(least, most)))

  def choose_head():
    kind = random.choice(list(HEADS))
    losses, metrics = (range(len(values)) for values in HEADS[kind][3:])
    return Head(kind, random.choice(losses), subset(metrics, 0, 2), subset(metrics, 0, 1))

  topology = random.choice([*SEQUENTIALS, *FUNCTIONALS, *SUBCLASSES])
  most = 1 if topology in SEQUENTIALS else 2
  heads = tuple(choose_head() for _ in range(random.randint(1, most)))
  # A number of a whole batch cannot be weighted.
  takes_weights = all(whole_batch not in (HEADS[head.kind][3][head.loss], *(
      HEADS[head.kind][4][index] for index in head.weighted_metrics)) for head in heads)
  body, optimizer = subset(LAYERS, 1, 2), random.randrange(len(OPTIMIZERS))
  # Two replicas take about twice as long as one.
  on_replicas = (random.random() < 1 / 3 and not BATCH_DEPENDENT & set(body)
                 and OPTIMIZERS[optimizer][0] not in FOR_ONE_REPLICA)
  return Case(
      topology, subset(INPUTS, 1, most), body, heads,
      subset(['loss_tensor', 'metric_tensor', 'loss_callable'], 0, 2), optimizer,
      # Keras and the copy name the output of such a model differently until it is built.
      'tuple' if topology == 'sequential_without_shape' else random.choice(['tuple', 'dict']),
      random.choice(['none', 'one', 'each'] if takes_weights else ['none']),
      *(random.random() < .5 for _ in range(4)), random.choice([EXAMPLES, 8, 4]),
      2 if on_replicas else 1, random.random() < 1 / 3)


# Models that failed once, and others, so that each topology and each layer is in one.
CASES = [
    Case('subclass', ('vector', 'scalar'), ('tf_function',), (Head(), Head()), form='dict',
         is_built=False, replicas=2),
    Case(heads=(Head(metrics=(4,)),), replicas=2),
    Case('subclass_with_config', body=('scaled_later', 'subclass'), is_built=False),
    Case('sequential', ('ids',), ('recurrent', 'frozen'), (Head('indices', 1, (2,)),)),
    Case('sequential_uses_twice', body=('leaky', 'lambda'), extras=('loss_callable',),
         heads=(Head(metrics=(5, 6)),), eval_batch_size=8),
    Case('sequential_without_shape', body=('batch_norm', 'scale'), label_columns=False),
    Case('functional_shared', ('scalar', 'column'), ('block', 'own'),
         (Head('binary', 1, (3,)), Head('numbers', 0, (2,))), ('loss_tensor', 'metric_tensor'),
         form='dict', weights='each', replicas=2),
    Case('functional_nested', body=('regularized', 'functional'), optimizer=3, weights='one',
         heads=(Head('classes', 3, (0, 3), (1,)),), eval_batch_size=8),
    Case('subclass_of_lists', body=('frozen', 'dropout'), optimizer=2),
    Case('subclass_of_models', ('double',), ('sequential', 'block'), has_double_labels=True),
    Case('subclass_that_forgets', heads=(Head('binary', 0, (0, 3)),), is_static=True,
         eval_batch_size=4)]


@pytest.mark.parametrize('case', [*CASES, *(
    pytest.param(random_case(random.Random(seed)), id=str(seed), marks=pytest.mark.slow)
    for seed in range(NUM_RANDOM))])
def test_an_estimator_is_like_its_model(case, tmp_path):
  check(case, tmp_path)

"""`convert` trains, evaluates and predicts random models like Keras.

  TESTS_RANDOM_MODELS=300 tests/run.sh tests/training/test_random_models.py

compares more of them than the 40 of `tests/run.sh --all`.
"""

import os
import random
from functools import partial
from typing import NamedTuple, Tuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from like_keras import SESSION_CONFIG, Scale, ScaledMean, Subclass, apply, compare, in_batches

keras = tf.keras
layers = tf.keras.layers
pytestmark = pytest.mark.usefixtures('own_graph')

EXAMPLES, BATCH_SIZE = 12, 4


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
  label_type: str = 'float32'
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
  """A layer with layers, functions, a weight, losses and a metric."""

  def __init__(self, **options):
    super().__init__(**options)
    self.inner, self.scales = dense(), [Scale(.7)]
    self.first, self.last = (lambda value: value + .1), (lambda value: value * .9)

  def build(self, shape):
    self.late = dense(activation=None)
    self.gain = self.add_weight('gain', [4], initializer='ones', regularizer=squares)
    super().build(shape)

  def call(self, inputs):
    self.add_loss(.1 * tf.reduce_mean(tf.square(inputs)), inputs=True)
    self.add_metric(tf.reduce_mean(inputs, -1), name='of_layer', aggregation='mean')
    return inputs * self.gain + self.late(apply(
        [self.first, self.inner, *self.scales, self.last], inputs))


class Cell(layers.SimpleRNNCell):
  """A cell with an argument that is not in its configuration."""

  def __init__(self, units, factor=1., **options):
    super().__init__(units, **options)
    self.factor = factor

  def call(self, inputs, states, training=None):
    return super().call(inputs * self.factor, states, training)


def partly_frozen_block():
  block = Block()
  block.inner.trainable = False
  return block


def layer_inside_and_outside_of_a_model():
  inputs, shared = layers.Input((4,)), dense()
  inner = keras.Sequential([layers.InputLayer((4,)), shared, dense()])
  return keras.Model(inputs, layers.add([shared(inputs), shared(inner(inputs))]))


class Loops(layers.Layer):
  """AutoGraph converts the loops and conditions of its functions."""

  def __init__(self, count):  # Without a configuration.
    super().__init__()
    self.count = count

  def build(self, shape):
    self.gain = self.add_weight('gain', [4], initializer=spread)

  @tf.function
  def repeat(self, values):
    for index in tf.range(self.count):
      if index % 2 > 0:
        values = tf.sin(values * self.gain)
      else:
        values += .3
    return values

  def call(self, inputs, training=None):
    values = self.repeat(inputs)
    while tf.reduce_max(tf.abs(values)) < 0:
      values *= 2
    if training:
      values *= .9
    return values


class Mask(layers.Layer):
  """Masks examples, or steps of sequences."""

  supports_masking = True

  def compute_mask(self, inputs, mask=None):
    return inputs[..., 0] > -.3


class Twice(layers.Wrapper):
  """Applies a layer to the two halves of an example."""

  def call(self, inputs):
    return tf.concat([self.layer(half) for half in tf.split(inputs, 2, -1)], -1)


class OwnSequential(keras.Sequential):

  def call(self, inputs, training=None, mask=None):
    return .5 * super().call(inputs) + tf.sin(inputs)


class OwnFunctional(keras.Model):

  def __init__(self):
    inputs = layers.Input((4,))
    super().__init__(inputs, dense()(inputs))

  def call(self, inputs, training=None, mask=None):
    return .5 * super().call(inputs) + tf.sin(inputs)


class Tied(layers.Layer):
  """Shares the weight of the layer in it, which it also calls."""

  def __init__(self):
    super().__init__()
    self.inner = dense()

  def call(self, inputs):
    return tf.matmul(self.inner(inputs), self.inner.kernel, transpose_b=True)


@tf.custom_gradient
def with_other_gradient(values):
  return tf.tanh(values), lambda gradient: .7 * gradient


def repeat_and_map(values):
  """Uses the loops of TensorFlow 1."""
  _, values = tf.while_loop(lambda index, _: index < 3, lambda index, state: (
      index + 1, tf.map_fn(lambda row: tf.sin(row) * 1.1, state)), (0, values))
  pair = tf.stack([values, 2 * values])
  return tf.cond(tf.size(values) > 0, lambda: tf.scan(
      lambda last, row: .1 * last + row, pair), lambda: pair)[1]


def with_closure():
  """Returns a layer that uses a tensor and a variable from outside."""
  variable = keras.backend.variable(spread([4]))
  tensor = tf.exp(variable)
  return layers.Lambda(lambda values: values * tensor + variable)


def with_own_call(layer):
  call = layer.call
  layer.call = lambda inputs, **options: .5 * call(inputs, **options) + tf.sin(inputs)
  return layer


def inside_and_outside_of_wrappers():
  inputs, inner = layers.Input((4,)), keras.Sequential([dense(2, input_shape=(2,))] * 2)
  first = Twice(inner)(inputs)
  second = layers.TimeDistributed(inner)(layers.Reshape((2, 2))(first))
  return keras.Model(inputs, layers.concatenate([
      inner(layers.Lambda(lambda values: values[:, 0])(second)),
      layers.GlobalAveragePooling1D()(second)]))


def image_layers(*items):
  return lambda: keras.Sequential([layers.Reshape((2, 1, 2), input_shape=(4,)), *(
      make() for make in items), layers.Flatten()])


LAYERS = {
    'autograph': lambda: Loops(3),
    'example_mask': Mask,
    'step_mask': lambda: keras.Sequential([layers.Reshape((2, 2), input_shape=(4,)), Mask(),
                                           layers.GRU(4, kernel_initializer=spread,
                                                      recurrent_initializer=spread)]),
    'own_sequential': lambda: OwnSequential([dense(input_shape=(4,)), Scale(.8)]),
    'own_functional': OwnFunctional,
    'tied': Tied,
    'own_call': lambda: with_own_call(dense()),
    'model_with_own_call': lambda: with_own_call(keras.Sequential([dense(input_shape=(4,))])),
    'wrappers': inside_and_outside_of_wrappers,
    'closure': with_closure,
    'other_gradient': lambda: layers.Lambda(with_other_gradient),
    'loops': lambda: layers.Lambda(repeat_and_map),
    'batch_norms': image_layers(layers.BatchNormalization, partial(
        layers.BatchNormalization, fused=False, scale=False)),
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
    'block': partly_frozen_block,
    'frozen': lambda: dense(trainable=False),
    'sequential': lambda: keras.Sequential([dense(input_shape=(4,)), Scale(.9)]),
    'functional': layer_inside_and_outside_of_a_model,
    'subclass': lambda: Subclass(dense(), Scale(.9)),
    'recurrent': lambda: keras.Sequential([
        layers.Reshape((2, 2)), layers.Bidirectional(layers.RNN(Cell(
            2, kernel_initializer='ones', recurrent_initializer='ones'), True, unroll=True)),
        layers.RNN(Cell(4, .7, kernel_initializer=spread, recurrent_initializer=spread),
                   unroll=True)]),
}
INPUTS = {  # The shape and type of an example.
    'vector': ((4,), 'float32'), 'double': ((4,), 'float64'), 'scalar': ((), 'float32'),
    'column': ((1,), 'float32'), 'ids': ((2,), 'int32'), 'long_ids': ((2,), 'int64'),
    'pixels': ((4,), 'uint8')}


def make_stem(kind):
  """Returns the layers that make [B, 4] of an input."""
  if kind.endswith('ids'):
    return [layers.Embedding(5, 2, embeddings_initializer=spread, input_length=2), layers.Flatten()]
  return [*[layers.Lambda(lambda pixels: tf.cast(pixels, tf.float32) / 9)] * (kind == 'pixels'),
          dense()]


def per_example(true, outputs):
  return tf.reduce_sum(tf.abs(tf.cast(true, outputs.dtype) - outputs), -1)


def whole_batch(true, outputs):
  return tf.reduce_mean(tf.square(tf.cast(true, outputs.dtype) - outputs))


class Ratio(keras.metrics.Metric):
  """A metric of metrics."""

  def __init__(self):
    super().__init__('ratio')
    self.parts = [keras.metrics.Mean(), keras.metrics.MeanAbsoluteError()]

  def update_state(self, y_true, y_pred, sample_weight=None):
    self.parts[0].update_state(tf.square(y_pred), sample_weight)
    return self.parts[1].update_state(y_true, y_pred, sample_weight)

  def result(self):
    return self.parts[0].result() / (1 + self.parts[1].result())


def of_logits(true, outputs):
  return keras.losses.sparse_categorical_crossentropy(true, outputs, from_logits=True)


REGRESSION = (
    ('mse', keras.losses.mean_absolute_error, 'logcosh', per_example, whole_batch),
    ('mae', keras.metrics.mean_squared_error, keras.metrics.RootMeanSquaredError, per_example,
     partial(ScaledMean, 2.), keras.metrics.LogCoshError, whole_batch, Ratio))
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
                 partial(keras.metrics.TopKCategoricalAccuracy, 2))),
    'indices': (3, None, lambda random: random.randint(3, size=(EXAMPLES, 1)),
                (keras.losses.SparseCategoricalCrossentropy(from_logits=True), of_logits),
                (keras.metrics.SparseCategoricalAccuracy, of_logits,
                 partial(keras.metrics.SparseTopKCategoricalAccuracy, 2))),
}


# Epsilon is large, because small values enlarge rounding errors.
OPTIMIZERS = [
    partial(keras.optimizers.SGD, .05, momentum=.9, nesterov=True),
    partial(keras.optimizers.SGD, .05, clipnorm=.1),
    partial(keras.optimizers.SGD, keras.optimizers.schedules.PiecewiseConstantDecay(
        [0, 1], [.2, .05, .1])),
    partial(keras.optimizers.Adam, .05, epsilon=.1, amsgrad=True, decay=.5, clipvalue=.01),
    partial(keras.optimizers.Ftrl, .05, l2_regularization_strength=.01),
    partial(tf.train.RMSPropOptimizer, .05, momentum=.5, epsilon=.1)]
EXTRAS = ['loss_callable', 'loss_tensor', 'metric_tensor', 'closures', 'loss_weights',
          'changed_trainable']
USES_TWICE = ['sequential_uses_twice', 'functional_shared', 'functional_nested']


class Network(keras.Model):
  """A subclassed model with layers in attributes, lists, dicts or models."""

  def __init__(self, case):
    super().__init__()
    self.case, body = case, [LAYERS[name]() for name in case.body]
    self.stems = [make_stem(kind) for kind in case.inputs]
    self.heads = {str(index): dense(*HEADS[head.kind][:2]) for index, head in enumerate(case.heads)}
    self.body = ([Subclass(*body[:1]), keras.Sequential(body[1:] + [dense()])]
                 if case.topology == 'subclass_of_models' else [body[:1], {'rest': body[1:]}])

  def call(self, inputs):
    values = connect(tf.nest.flatten(inputs), self.stems, tf.nest.flatten(self.body), self.case)
    outputs = [head(values) for _, head in sorted(self.heads.items())]
    return outputs if len(outputs) > 1 else outputs[0]


def connect(inputs, stems, body, case):
  """Applies a body to the sum of the inputs, or to each of them and once more."""
  values = [apply(stem, value) for stem, value in zip(stems, inputs)]
  if case.topology == 'functional_shared':
    return layers.add([apply(body, value) for value in [*values, values[0]]])
  return apply(body, layers.add(values) if len(values) > 1 else values[0])


def build(case):
  """Returns a model that is not compiled."""
  if case.topology.startswith('subclass'):
    return Network(case)
  body, stems = [LAYERS[name]() for name in case.body], [make_stem(kind) for kind in case.inputs]
  heads = [dense(*HEADS[head.kind][:2], name='output_{}'.format(number))
           for number, head in enumerate(case.heads, 1)]
  inputs = [layers.Input(INPUTS[kind][0] or (1,), name='input_{}'.format(number),
                         dtype={'ids': 'int32', 'long_ids': 'int32', 'pixels': 'uint8'}.get(kind))
            for number, kind in enumerate(case.inputs, 1)]
  if case.topology.startswith('sequential'):
    first = [] if case.topology == 'sequential_without_shape' else inputs
    return keras.Sequential([
        *first, *stems[0], *body * (1 + (case.topology == 'sequential_uses_twice')), *heads])
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


def compile_model(model, case):
  """Compiles a model with the losses and metrics of a case."""
  def choose_metrics(name):
    return in_form([[
        value() if isinstance(value, (type, partial)) else value for value in (
            HEADS[head.kind][4][index] for index in getattr(head, name))]
                    for head in case.heads], 'output', case.form, list)

  if 'loss_callable' in case.extras:
    model.add_loss(lambda: tf.add_n([squares(weight) for weight in model.weights]))
  losses = [HEADS[head.kind][3][head.loss] for head in case.heads]
  if 'closures' in case.extras:
    factor = keras.backend.variable(.7)
    losses = [with_factor(loss, factor, tf.sin(factor)) for loss in losses]
  model.compile(OPTIMIZERS[case.optimizer](), in_form(losses, 'output', case.form, list),
                choose_metrics('metrics'), weighted_metrics=choose_metrics('weighted_metrics'),
                loss_weights=[.3] * len(losses) if 'loss_weights' in case.extras else None)
  if 'changed_trainable' in case.extras:  # Without effect, unless the model is compiled again.
    for layer in model.layers[2:]:  # One is trained in any case.
      layer.trainable = not layer.trainable


def with_factor(loss, *factors):
  loss = keras.losses.get(loss)
  return lambda true, outputs: getattr(loss, 'call', loss)(true, outputs) * factors[0] + factors[1]


def in_form(values, kind, form, several=tuple):
  """Returns values of inputs or outputs as a dict, a tuple or, if there is one, alone."""
  if form == 'dict':
    return {'{}_{}'.format(kind, number): value for number, value in enumerate(values, 1)}
  return values[0] if len(values) == 1 else several(values)


def make_data(case, is_known):
  """Returns the features and labels, lists of arrays, and the sample weights, a list or None."""
  random = np.random.RandomState(3)
  features, labels = [], []
  for shape, dtype in (INPUTS[kind] for kind in case.inputs):
    values = (random.randint(5, size=(EXAMPLES, *shape)) if 'int' in dtype else
              random.normal(size=(EXAMPLES, *shape)))
    # A model without known inputs takes the type of a data set, which Keras converts in arrays.
    features.append(values.astype('float32' if dtype == 'float64' and not is_known else dtype))
  for head in case.heads:
    values = HEADS[head.kind][2](random)
    if values.dtype == float or case.label_type in ('bool', 'uint8'):
      values = (values if 'float' in case.label_type else np.abs(values)).astype(case.label_type)
    labels.append(values if values.shape[1] > 1 or case.label_columns else values[:, 0])
  weights = [random.uniform(.2, 2, size=EXAMPLES).astype(np.float32) for _ in case.heads]
  return features, labels, {
      'none': None, 'each': weights, 'one': weights[:1] * len(weights)}[case.weights]


def random_case(random):
  """Mixes the CASES, with other layers, heads and optimizers."""
  def subset(values, least, most):
    return tuple(random.sample(list(values), random.randint(least, most)))

  def choose_head():
    kind = random.choice(list(HEADS))
    losses, metrics = (range(len(values)) for values in HEADS[kind][3:])
    return Head(kind, random.choice(losses), subset(metrics, 0, 2), subset(metrics, 0, 1))

  case = Case(*(random.choice(list(dict.fromkeys(values))) for values in zip(*CASES)))
  case = case._replace(
      body=subset(LAYERS, 1, 2), heads=tuple(choose_head() for _ in case.inputs),
      optimizer=random.randrange(len(OPTIMIZERS)), predicts=random.random() < 1 / 3,
      extras=subset(EXTRAS, 0, 2))
  if case.topology.startswith('sequential'):
    case = case._replace(inputs=case.inputs[:1], heads=case.heads[:1])
  if case.topology == 'sequential_without_shape':
    case = case._replace(form='tuple')  # The names of the layers determine those of the input.
  # A number of a whole batch cannot be weighted.
  if any(whole_batch in (HEADS[head.kind][3][head.loss], *(
      HEADS[head.kind][4][index] for index in (*head.metrics, *head.weighted_metrics)))
         for head in case.heads):
    case = case._replace(weights='none', body=tuple(
        'dense' if name == 'example_mask' else name for name in case.body))
  if 'autograph' in case.body:  # Keras cannot train it after anything that runs its session.
    case = case._replace(is_built=False, predicts=False, extras=())
  if {'batch_norm', 'batch_norms', 'dropout'} & set(case.body):
    case = case._replace(replicas=1)
  return case


# Models that failed once, and others, so that each topology and each layer is in one.
CASES = [
    Case('subclass', ('vector', 'scalar'), ('tf_function', 'autograph'), (Head(), Head()),
         form='dict', is_built=False, replicas=2, predicts=False),
    Case(body=('wrappers', 'model_with_own_call'), heads=(Head(metrics=(4, 7)),), replicas=2),
    Case('subclass', body=('scale', 'subclass', 'closure'), is_built=False),
    Case('sequential', ('ids',), ('recurrent', 'frozen'), (Head('indices', 1, (2,)),),
         ('changed_trainable',)),
    Case('sequential_uses_twice', body=('leaky', 'lambda', 'loops'), extras=('loss_callable',),
         heads=(Head(metrics=(5, 6)),), eval_batch_size=8),
    Case('sequential_without_shape', body=('batch_norm', 'scale'), label_columns=False),
    Case('functional_shared', ('scalar', 'column'), ('block', 'own'),
         (Head('binary', 1, (3,)), Head('numbers', 0, (2,))), ('loss_tensor', 'metric_tensor'),
         form='dict', weights='each', replicas=2),
    Case('functional_nested', body=('regularized', 'functional'), optimizer=3, weights='one',
         heads=(Head('classes', 3, (0, 3), (1,)),), eval_batch_size=8),
    Case('subclass', body=('frozen', 'dropout'), optimizer=2),
    Case('subclass_of_models', ('double',), ('sequential', 'block'), label_type='float64'),
    Case('subclass', ('long_ids',), heads=(Head('binary', 0, (0, 3)),), is_static=True,
         label_type='bool', eval_batch_size=4),
    Case('functional_nested', ('pixels',), ('example_mask', 'own_functional', 'tied'),
         (Head('classes', 0, (), (0,)),), ('closures', 'loss_weights'), weights='each',
         label_type='uint8', eval_batch_size=8, replicas=2),
    Case('functional_shared', body=('own_sequential', 'step_mask', 'own_call', 'other_gradient'),
         optimizer=1, replicas=2),
    Case(body=('batch_norms',), extras=('changed_trainable',))]


@pytest.mark.parametrize('case', [*CASES, *(
    pytest.param(random_case(random.Random(seed)), id=str(seed), marks=pytest.mark.slow)
    for seed in range(int(os.environ.get('TESTS_RANDOM_MODELS', '40'))))])
def test_an_estimator_is_like_its_model(case, tmp_path):
  tf.set_random_seed(1)
  keras.backend.set_session(tf.Session(config=SESSION_CONFIG))
  model = build(case)
  compile_model(model, case)
  is_known = bool(model.inputs)
  features, labels, weights = make_data(case, case.is_built or is_known)
  values, keras_features = (in_form(features, 'input', case.form, form) for form in (tuple, list))
  if case.is_built:
    if not is_known:
      model.predict_on_batch(keras_features)
    random = np.random.RandomState(5)
    model.set_weights([weight + random.uniform(.01, .1, size=weight.shape)
                       for weight in model.get_weights()])
  arrays = keras_features, labels
  if weights is not None:
    arrays += weights,
    values = {'features': values, 'sample_weights': (
        weights[0] if case.weights == 'one' else in_form(weights, 'output', case.form))}

  def make_input_fn(batch_size):
    return in_batches((values, in_form(labels, 'output', case.form)), min(batch_size, EXAMPLES),
                      drop_remainder=case.is_static and batch_size != 8)

  compare(model, tmp_path, arrays, make_input_fn, batch_size=BATCH_SIZE, replicas=[case.replicas],
          eval_batch_size=case.eval_batch_size, predicts=case.predicts, seed=1,
          # TensorFlow updates a moving average twice in a step, in any order: m - (m - b) / 100
          # differs by up to (m - b) / 10,000, in Keras as well.
          tolerance=1e-3 if {'batch_norm', 'batch_norms'} & set(case.body) and (
              case.topology in USES_TWICE) else 1e-5,
          # Keras counts one use of a layer only, and gives the value of a layer in an inner model
          # the name of the next metric.
          uncompared=(['of_layer'] if case.topology in USES_TWICE else [])
          + (['of_model'] if case.topology == 'functional_nested' else []))

"""`convert` trains, evaluates and predicts random models like Keras; RANDOM_MODELS is their number.
"""

import functools
import operator
import os
import re
import tempfile
from typing import NamedTuple, Tuple

import hypothesis
import numpy as np
import tensorflow.compat.v1 as tf
from hypothesis import Phase, given, strategies as st

import estimator_train

keras = tf.keras
layers = tf.keras.layers

EXAMPLES, BATCH_SIZE, REPLICAS = 12, 4, 2
# Optimizing the graphs would take longer than running them.
SESSION_CONFIG = tf.ConfigProto()
SESSION_CONFIG.graph_options.rewrite_options.disable_meta_optimizer = True
CONFIG = tf.ConfigProto(graph_options=tf.GraphOptions(
    optimizer_options=tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0)))
SESSION_CONFIG.graph_options.rewrite_options.disable_meta_optimizer = True
CONFIG = tf.estimator.RunConfig(tf_random_seed=1, session_config=SESSION_CONFIG,
                                save_summary_steps=None, log_step_count_steps=None)


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


def spread(shape, dtype=None, partition_info=None):
  """An initializer that gives equal weights in all graphs."""
  numbers = tf.cast(tf.range(1, int(np.prod(shape)) + 1), dtype or tf.float32)
  return tf.reshape(.5 * tf.sin(1.7 * numbers), shape)


def dense(units=4, activation='tanh', **options):
  return layers.Dense(units, activation, kernel_initializer=spread, **options)


def squares(values):
  return .01 * tf.reduce_sum(tf.square(tf.cast(values, tf.float32)))


class Scale(layers.Layer):
  """A layer whose configuration lacks its argument."""

  def __init__(self, factor=1., **options):
    super().__init__(**options)
    self.factor = factor

  def call(self, inputs):
    return inputs * self.factor

  def get_config(self):
    return super().get_config()


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


def changed(layer, **attributes):
  vars(layer).update(attributes)
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
    'scaled_later': lambda: changed(Scale(), factor=.6),
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


class ScaledMean(keras.metrics.Mean):
  """A metric whose configuration lacks its argument."""

  def __init__(self, factor=1., name='scaled_mean', **options):
    super().__init__(name, **options)
    self.factor = factor

  def update_state(self, y_true, y_pred, sample_weight=None):
    return super().update_state(self.factor * y_pred)


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
                 keras.metrics.sparse_categorical_accuracy)),
}


BATCH_DEPENDENT = {'batch_norm', 'dropout'}
# Classes and options. Epsilon is large, because small values enlarge rounding errors.
RATE = {'learning_rate': .05}
OPTIMIZERS = [
    (keras.optimizers.SGD, dict(RATE, momentum=.9, nesterov=True)),
    (keras.optimizers.SGD, dict(RATE, clipnorm=.1)),
    (keras.optimizers.SGD, {'learning_rate': keras.optimizers.schedules.PiecewiseConstantDecay(
        [0, 1], [.2, .05, .1])}),
    (keras.optimizers.Adam, dict(RATE, epsilon=.1, amsgrad=True, decay=.5, clipvalue=.01)),
    (keras.optimizers.RMSprop, dict(RATE, epsilon=.1, momentum=.5, centered=True)),
    (keras.optimizers.Adagrad, dict(RATE, epsilon=.1)),
    (keras.optimizers.Adadelta, dict(RATE, epsilon=.1)),
    (keras.optimizers.Adamax, dict(RATE, epsilon=.1)),
    (keras.optimizers.Nadam, dict(RATE, epsilon=.1)),
    (keras.optimizers.Ftrl, dict(RATE, l2_regularization_strength=.01)),
    (tf.train.GradientDescentOptimizer, RATE),
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
    self.body = (
        [body[:1], {'rest': body[1:]}] if case.topology == 'subclass_of_lists' else
        [Inner(*body[:1]), keras.Sequential(body[1:] + [dense()])]
        if case.topology == 'subclass_of_models' else body)

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
    if values.dtype == float and not case.has_double_labels:
      values = values.astype(np.float32)
    labels.append(values[:, 0] if values.shape == (EXAMPLES, 1) and not case.label_columns
                  else values)
  weights = [random.uniform(.2, 2, size=EXAMPLES).astype(np.float32) for _ in case.heads]
  return features, labels, {
      'none': None, 'each': weights, 'one': weights[:1] * len(weights)}[case.weights]


def run_keras(model, features, labels, weights):
  """Returns the predictions of a model, its weights after training, and its evaluation."""
  predictions = model.predict(features)
  arrays = (features, labels) if weights is None else (features, labels, weights)
  for start in range(0, EXAMPLES, BATCH_SIZE):
    take_batch = operator.itemgetter(slice(start, start + BATCH_SIZE))
    model.train_on_batch(*tf.nest.map_structure(take_batch, arrays))
  values = model.evaluate(features, labels, EXAMPLES, 0, weights)
  return (predictions if isinstance(predictions, list) else [predictions], model.get_weights(),
          dict(zip(model.metrics_names, values if isinstance(values, list) else [values])))


def assert_near(value, expected, what):
  np.testing.assert_allclose(value, expected, rtol=0, err_msg=what,
                             atol=1e-5 * max(1., np.abs(expected).max()))


def assert_has_weights(estimator, weights, what):
  """Each weight must be a variable of the checkpoint; names depend on the graph."""
  variables = list(map(estimator.get_variable_value, estimator.get_variable_names()))
  for index, weight in enumerate(weights):
    distances = [np.abs(value - weight).max() for value in variables if value.shape == weight.shape]
    assert_near(min(distances), 0, '{}, weight {}'.format(what, index))


# What is not supported: the start of the error, and the choices that may cause it.
EXPECTED_ERRORS = [(r'the optimizer does not support distribution strategies in TensorFlow 1\.15: ',
                    lambda case: OPTIMIZERS[case.optimizer][0] in (
                        keras.optimizers.Nadam, tf.train.ProximalAdagradOptimizer))]
def check(case, folder):
  """Compares the Estimators of a case, with one and several replicas, with Keras."""
  model = build(case)
  names = getattr(model, 'output_names', None) or [
      'output_{}'.format(index + 1) for index in range(len(case.heads))]
  compile_model(model, case, names)
  is_subclass = case.topology in SUBCLASSES
  is_known = case.is_built or case.topology not in [*SUBCLASSES, 'sequential_without_shape']
  features, labels, weights = make_data(case, is_known)
  input_names = ['in0', 'in1'] if is_subclass else getattr(model, 'input_names', None)
  keras_features = (in_form(features, input_names, case.form) if is_subclass and (
      case.form == 'dict') else features if len(features) > 1 else features[0])
  if case.is_built:
    model.predict_on_batch(keras_features)
    random = np.random.RandomState(5)
    model.set_weights([weight + random.uniform(.01, .1, size=weight.shape)
                       for weight in model.get_weights()])
    input_names = input_names if is_subclass else model.input_names

  def make_input_fn(batch_size):
    values = in_form(features, input_names, case.form)
    if weights is not None:
      values = {'features': values, 'sample_weights': (
          weights[0] if case.weights == 'one' else in_form(weights, names, case.form))}
    return lambda: tf.data.Dataset.from_tensor_slices(
        (values, in_form(labels, names, case.form))).batch(
            batch_size, case.is_static and EXAMPLES % batch_size == 0)

  estimators = [estimator_train.convert(model, model_dir=os.path.join(folder, str(replicas)),
                                        config=CONFIG, num_cpu_replicas=replicas)
                for replicas in (0, REPLICAS)[:1 if BATCH_DEPENDENT & set(case.body) else 2]]
  predictions = list(estimators[0].predict(make_input_fn(EXAMPLES)))
  estimators[0].train(make_input_fn(BATCH_SIZE))
  results = estimators[0].evaluate(make_input_fn(case.eval_batch_size))
  try:
    for estimator in estimators[1:]:
      estimator.train(make_input_fn(BATCH_SIZE // REPLICAS))
  except ValueError as error:
    if '\n' in str(error) or not any(re.match(start, str(error)) and may_fail(case)
                                     for start, may_fail in EXPECTED_ERRORS):
      raise
    hypothesis.event(str(error))
    del estimators[1:]
  expected, trained, values = run_keras(model, keras_features, labels, weights)
  for index, value in enumerate(expected):
    assert_near([prediction[sorted(prediction)[index]] for prediction in predictions], value,
                'predictions of output {}'.format(index))
  for index, estimator in enumerate(estimators):
    assert_has_weights(estimator, trained, 'replicas: {}'.format(index + 1))
  loss = values.pop('loss')
  if case.eval_batch_size == EXAMPLES:
    assert_near(results['loss'], loss, 'loss of the batch')
  if 'confusion_matrix' not in results or not model.losses:  # A classifier reports these alone.
    assert_near(results['average_loss'] + results.get('regularization_loss', 0), loss, 'loss')
  for name, value in values.items():
    if name != 'of_layer' or case.topology not in USES_TWICE:  # Keras counts one use only.
      assert_near(results[name], value, name)


def run(case):
  with tf.Graph().as_default(), tempfile.TemporaryDirectory() as folder:
    tf.set_random_seed(1)
    keras.backend.set_session(tf.Session(config=SESSION_CONFIG))
    try:
      check(case, folder)
    finally:
      keras.backend.set_session(None)
      tf.summary.FileWriterCache.clear()


def random_case(random):
  """Chooses a case; the choices are independent, so that few models are alike."""
  def subset(values, least, most):
    return tuple(random.sample(list(values), random.randint(least, most)))

  def choose_head():
    kind = random.choice(list(HEADS))
    losses, metrics = (range(len(values)) for values in HEADS[kind][3:])
    return Head(kind, random.choice(losses), subset(metrics, 0, 3), subset(metrics, 0, 1))

  topology = random.choice([*SEQUENTIALS, *FUNCTIONALS, *SUBCLASSES])
  most = 1 if topology in SEQUENTIALS else 2
  heads = tuple(choose_head() for _ in range(random.randint(1, most)))
  # A number of a whole batch cannot be weighted.
  takes_weights = all(whole_batch not in (HEADS[head.kind][3][head.loss], *(
      HEADS[head.kind][4][index] for index in head.weighted_metrics)) for head in heads)
  return Case(
      topology, subset(INPUTS, 1, most), subset(LAYERS, 1, 2), heads,
      subset(['loss_tensor', 'metric_tensor', 'loss_callable'], 0, 2),
      random.randrange(len(OPTIMIZERS)),
      # Keras and the copy name the output of such a model differently until it is built.
      'tuple' if topology == 'sequential_without_shape' else random.choice(['tuple', 'dict']),
      random.choice(['none', 'one', 'each'] if takes_weights else ['none']),
      *(random.random() < .5 for _ in range(4)), random.choice([EXAMPLES, 8, 4]))


@hypothesis.seed(1)
@hypothesis.settings(
    max_examples=int(os.environ.get('RANDOM_MODELS', '15')), deadline=None, database=None,
    phases=[Phase.explicit, Phase.generate], suppress_health_check=list(hypothesis.HealthCheck))
@given(st.randoms(use_true_random=True).map(random_case))
@hypothesis.example(Case(topology='subclass', heads=(Head(), Head()), form='dict', is_built=False))
@hypothesis.example(Case(heads=(Head(metrics=(4,)),)))
def test_an_estimator_is_like_its_model(case):
  run(case)

"""Rewrites the configuration of a model of TensorFlow 1.15 so that Keras 3 loads it, too.

Keras 3 rejects some configurations of TensorFlow 1.15. This module makes only changes after which
TensorFlow 1.15, tf_keras and Keras 3 all load the same model:

- Initializers lose their `dtype`, because layers pass the dtype of their weights anyway.
- A Sequential model begins with an InputLayer. Without it, TensorFlow 1.15 and tf_keras make one
  from the `batch_input_shape` of the first layer.
- A single input or output of a functional model is not in a list.
- A layer that another layer wraps gets the module of its class, so that Keras 3 finds the class.
- Arguments that Keras 3 lacks are left out where they have the default value (`time_major`,
  `causal`) or no effect (`kernel_initializer` of a SeparableConv2D).
- If a layer of a functional model is itself a model, its calls are repeated (see _repeat_calls).
- Slashes in the names of inner layers, as in DenseNet, become underscores. The weights do not
  depend on the names, because they are loaded by their order.
- The Lambda layers of InceptionResNetV2 are replaced by other layers (see _make_scaled_sum_layers),
  because a Lambda layer is saved as code for one version of Python.
"""

import copy
from typing import Any, Dict, Iterator, List

import tensorflow.compat.v1 as tf

from estimator_train.model.networks import ScaledResidualSum

Config = Dict[str, Any]

_INITIALIZERS = {
    'Constant', 'GlorotNormal', 'GlorotUniform', 'Identity', 'Ones', 'Orthogonal', 'RandomNormal',
    'RandomUniform', 'TruncatedNormal', 'VarianceScaling', 'Zeros'}
_MODEL_CLASSES = ('Model', 'Sequential')
# Layers of TensorFlow 1.15 that Keras 3 lacks.
_NOT_IN_KERAS_3 = {
    'AddLoss', 'AddMetric', 'CuDNNGRU', 'CuDNNLSTM', 'LocallyConnected1D', 'LocallyConnected2D',
    'TensorFlowOpLayer', 'ThresholdedReLU'}
# Arguments to omit, as rows (beginning of the name of the class, other argument, argument to omit,
# has effect). Only classes with the other argument are Keras's, not the user's. If `has effect` is
# True, the argument can be omitted only if its value is False or None.
_OMITTED_ARGUMENTS = (
    ('', 'return_sequences', 'time_major', True),
    ('', 'use_scale', 'causal', True),
    ('SeparableConv', 'depthwise_initializer', 'kernel_initializer', False),
    ('SeparableConv', 'depthwise_initializer', 'kernel_regularizer', False),
    ('SeparableConv', 'depthwise_initializer', 'kernel_constraint', False),
    ('SpatialDropout', 'rate', 'noise_shape', True),
    ('SpatialDropout', 'rate', 'trainable', False))


class NotPortable(Exception):
  """Keras 3 cannot load the model, or would compute other outputs."""


def rewrite_model_config(config: Config) -> Config:
  """Returns a configuration of the model that Keras 3 can load.

  Raises:
    NotPortable: Keras 3 cannot load the model, or would compute other outputs.
  """
  if config['class_name'] not in _MODEL_CLASSES:
    raise NotPortable('{} is a subclass of tf.keras.Model'.format(config['class_name']))
  config = copy.deepcopy(config)
  _rewrite_layer(config)
  return config


def rewrite_training_config(config: Config) -> Config:
  """Returns a configuration of the arguments of `compile` that Keras 3 can load."""
  config = copy.deepcopy(config)
  for loss in find_dicts(config.get('loss')):
    options = loss.get('config')
    if isinstance(options, dict) and options.get('reduction') == 'auto':
      options['reduction'] = 'sum_over_batch_size'
  optimizer = config.get('optimizer_config', {}).get('config', {})
  if optimizer.get('decay') == 0:
    del optimizer['decay']  # Keras 3 logs a warning about this argument, even for the default.
  return config


def _rewrite_layer(layer: Config) -> None:
  """Rewrites the configuration of a layer or model, {'class_name': ..., 'config': {...}}."""
  name, options = layer['class_name'], layer['config']
  if '/' in str(options.get('name')):
    raise NotPortable('the name {} contains a slash'.format(options['name']))
  if name in _NOT_IN_KERAS_3:
    raise NotPortable('Keras 3 has no {}'.format(name))
  if name == 'DenseFeatures':
    raise NotPortable('it lacks the feature columns of a layer DenseFeatures')
  if name == 'Lambda':
    raise NotPortable('a Lambda layer contains code for a version of Python')
  if name == 'Sequential':
    _rewrite_sequential(options)
  elif name == 'Model':
    _rewrite_functional(options)
  else:
    for initializer in find_dicts(options):
      if (initializer.get('class_name') in _INITIALIZERS
          and isinstance(initializer.get('config'), dict)):
        dtype = initializer['config'].pop('dtype', 'float32')
        if dtype != 'float32':
          raise NotPortable('an initializer of {} has the dtype {}'.format(
              options.get('name'), dtype))
    if _is_of_keras(name):
      _rewrite_keras_layer(name, options)


def _is_of_keras(class_name: str) -> bool:
  """Returns whether Keras has a layer of this name. A class of the user may have the same name."""
  return hasattr(tf.keras.layers, class_name)


def find_dicts(value: Any) -> Iterator[Config]:
  """Yields all dicts in a value of a configuration, an outer dict before those in it."""
  if isinstance(value, dict):
    yield value
  for item in _list_items(value):
    yield from find_dicts(item)


def _list_items(value: Any) -> List[Any]:
  """Returns the items of a list, or the values of a dict; [] for any other value."""
  return list(value.values()) if isinstance(value, dict) else (
      value if isinstance(value, list) else [])


def _rewrite_keras_layer(name: str, options: Config) -> None:
  """Rewrites the configuration of a layer of Keras, and of the layers that it wraps."""
  if 'hard_sigmoid' in (options.get('activation'), options.get('recurrent_activation')):
    raise NotPortable('hard_sigmoid of {} has another slope in Keras 3'.format(options['name']))
  if isinstance(options.get('axis'), list) and len(options['axis']) > 1:
    raise NotPortable('{} has several axes'.format(options['name']))
  for prefix, other_argument, argument, has_effect in _OMITTED_ARGUMENTS:
    if name.startswith(prefix) and other_argument in options and argument in options:
      if has_effect and options[argument]:
        raise NotPortable('Keras 3 has no argument {} of {}'.format(argument, name))
      del options[argument]
  for wrapped in [options.get(argument) for argument in ('layer', 'backward_layer', 'cell')] + (
      options.get('cells', [])):
    if wrapped is not None:
      _rewrite_wrapped_layer(wrapped)


def _rewrite_wrapped_layer(layer: Config) -> None:
  """Rewrites the configuration of a layer in another layer, and adds the module of its class."""
  _rewrite_layer(layer)
  if layer['class_name'] in _MODEL_CLASSES:
    layer['module'] = 'keras'
  elif _is_of_keras(layer['class_name']):
    layer['module'] = 'keras.layers'
    layer['config'].pop('batch_input_shape', None)  # Only the outer layer has a batch input shape.
    axis = layer['config'].get('axis')
    if isinstance(axis, list):
      layer['config']['axis'] = axis[0]


def _rewrite_sequential(options: Config) -> None:
  """Rewrites the layers of a Sequential model, and inserts its InputLayer."""
  layers = options['layers']
  for layer in layers:
    _rewrite_layer(layer)
  first = layers[0]['config'] if layers else {}
  if 'batch_input_shape' in first and layers[0]['class_name'] != 'InputLayer':
    layers.insert(0, {'class_name': 'InputLayer', 'config': {
        'batch_input_shape': first.pop('batch_input_shape'), 'dtype': first.get('dtype'),
        'sparse': False, 'name': first['name'] + '_input'}})


def _rewrite_functional(options: Config) -> None:
  _rename_inner_layers(options)
  options['layers'] = [new_layer for layer in options['layers'] for new_layer in (
      _make_scaled_sum_layers(layer) if layer['class_name'] == ScaledResidualSum.__name__
      else [layer])]
  for layer in options['layers']:
    _rewrite_layer(layer)
    for call in layer['inbound_nodes']:
      references = list(_find_references(call))
      if not isinstance(call, list) or len(references) > len(call) or (
          len(call) > 1 and 'return_sequences' in layer['config']):
        # Keras 3 does not load such an argument.
        raise NotPortable('{} has another layer as an argument'.format(layer['name']))
  _repeat_calls(options)
  for key in ('input_layers', 'output_layers'):
    if isinstance(options[key], list) and len(options[key]) == 1:
      options[key] = options[key][0]


def _rename_inner_layers(options: Config) -> None:
  """Replaces slashes in the names of layers that are neither inputs nor outputs of the model."""
  layers = options['layers']
  outer_names = {reference[0] for reference in _find_references(
      [options['input_layers'], options['output_layers']])}
  new_names = {layer['name']: layer['name'] if layer['name'] in outer_names else
               layer['name'].replace('/', '_') for layer in layers}
  if len(set(new_names.values())) == len(layers):
    for layer in layers:
      layer['name'] = layer['config']['name'] = new_names[layer['name']]
    for reference in _find_references([layer['inbound_nodes'] for layer in layers]):
      reference[0] = new_names[reference[0]]


def _repeat_calls(options: Config) -> None:
  """Repeats each call of a model inside a functional model, so that each Keras finds the call.

  TensorFlow 1.15 and tf_keras count the calls of such a model from 1, and Keras 3 counts from 0.
  After the repetition, the index of a call refers to the first of the two calls in TensorFlow 1.15
  and tf_keras, and to the second one in Keras 3. The output of the other call is not used. The
  second call is in inference mode, because TensorFlow 1.15 would otherwise update the statistics of
  batch norm twice per step. In training, Keras 3 overrides this mode.

  Raises:
    NotPortable: a second call of a model could have an effect on training.
  """
  models = set()
  for layer in options['layers']:
    if _counts_calls_from_one(layer):
      models.add(layer['name'])
      _check_repeatable(layer)
      layer['inbound_nodes'] = [repeated for call in layer['inbound_nodes'] for repeated in (call, [
          [*reference[:3], dict({'training': False}, **reference[3])] for reference in call])]
  for reference in _find_references([[layer['inbound_nodes'] for layer in options['layers']],
                                     options['input_layers'], options['output_layers']]):
    if reference[0] in models:
      reference[1] = 2 * reference[1] - 1


def _counts_calls_from_one(layer: Config) -> bool:
  """Returns whether the layer is a model whose first call, on its own inputs, has the index 0."""
  if layer['class_name'] == 'Sequential' and layer['config']['layers']:
    first = layer['config']['layers'][0]
    return 'batch_input_shape' in first['config'] or _counts_calls_from_one(first)
  return layer['class_name'] == 'Model'


def _check_repeatable(model: Config) -> None:
  """Raises NotPortable if a repeated call of the model could have an effect on training."""
  for layer in find_dicts(model):
    options = layer.get('config')
    if 'class_name' in layer and isinstance(options, dict) and 'name' in options and (
        not (layer['class_name'] in _MODEL_CLASSES or _is_of_keras(layer['class_name'])) or
        layer['class_name'] == 'ActivityRegularization'
        or options.get('activity_regularizer') or options.get('stateful')):
      raise NotPortable('{} in {} may have an effect on training when it is called twice'.format(
          options['name'], model['config']['name']))


def _find_references(value: Any) -> Iterator[List[Any]]:
  """Yields the references to outputs: [layer, index of its call, index of the output, ...]."""
  items = _list_items(value)
  if len(items) in (3, 4) and isinstance(items[0], str):
    yield items
    items = items[3:]  # Arguments can refer to outputs, too.
  for item in items:
    yield from _find_references(item)


def _make_scaled_sum_layers(layer: Config) -> List[Config]:
  """Returns the layers that compute `inputs[0] + inputs[1] * scale`, in place of a Lambda layer.

  No layer multiplies all numbers by a constant, but LeakyReLU multiplies those below 0. `s * x` is
  therefore computed as `s * min(x, 0) - s * min(-x, 0)`, where one of the two terms is 0. The
  result and its gradient equal those of the Lambda layer in each bit. The last layer has the name
  of the Lambda layer.
  """
  name, scale = layer['name'], layer['config']['arguments']['scale']
  new_layers: List[Config] = []

  def add_layer(class_name: str, suffix: str, *inputs: Any, **options: Any) -> List[Any]:
    new_name = name + suffix
    new_layers.append({'name': new_name, 'class_name': class_name, 'config': dict(
        options, name=new_name, trainable=True, dtype='float32'), 'inbound_nodes': [list(inputs)]})
    return [new_name, 0, 0, {}]

  shortcut, residual = layer['inbound_nodes'][0]
  positive = add_layer('ReLU', '_positive', residual, max_value=None, negative_slope=0.,
                       threshold=0.)
  negative = add_layer('Subtract', '_negative', residual, positive)
  opposite = add_layer('Subtract', '_opposite', negative, residual)
  scaled = add_layer('Subtract', '_scaled',
                     add_layer('LeakyReLU', '_scaled_negative', negative, alpha=scale),
                     add_layer('LeakyReLU', '_scaled_opposite', opposite, alpha=scale))
  add_layer('Add', '', shortcut, scaled)
  return new_layers

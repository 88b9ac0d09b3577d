"""Rewrites the configuration of a model of TensorFlow 1.15 so that Keras 3 loads it, too.

Keras 3 rejects some of what TensorFlow 1.15 writes. This module changes only what all of TensorFlow
1.15, tf_keras and Keras 3 read alike:

- An initializer has no `dtype`: a layer passes the dtype of its weights anyway.
- A Sequential model begins with an InputLayer, which TensorFlow 1.15 and tf_keras would make
  themselves from the `batch_input_shape` of the first layer.
- A single input or output of a functional model is not in a list.
- A layer that another layer wraps has the module of its class, without which Keras 3 does not find
  the class.
- Arguments that Keras 3 lacks are left out where they have the default value (`time_major`,
  `causal`) or no effect (`kernel_initializer` of a SeparableConv2D).
- Each call of a model that is a layer of a functional model is repeated. TensorFlow 1.15 and
  tf_keras count the calls of such a layer from 1, and Keras 3 from 0, so that an index refers to
  the first copy in the former and to the second copy in the latter. The output of the other copy is
  not used. The second copy is in inference mode, or TensorFlow 1.15 would update the statistics of
  batch norm twice per step; Keras 3 overrides this in training.
- The Lambda layers of InceptionResNetV2 are replaced, see portable_lambda.py.
"""

import copy
from typing import Any, Dict, Iterator, List

from estimator_train.exporting import portable_lambda

Config = Dict[str, Any]

_INITIALIZERS = {
    'Constant', 'GlorotNormal', 'GlorotUniform', 'Identity', 'Ones', 'Orthogonal', 'RandomNormal',
    'RandomUniform', 'TruncatedNormal', 'VarianceScaling', 'Zeros'}
_NETWORKS = ('Model', 'Sequential')
# Layers of TensorFlow 1.15 that Keras 3 lacks.
_NOT_IN_KERAS_3 = {
    'AddLoss', 'AddMetric', 'CuDNNGRU', 'CuDNNLSTM', 'DenseFeatures', 'DeviceWrapper',
    'DropoutWrapper', 'LocallyConnected1D', 'LocallyConnected2D', 'PeepholeLSTMCell',
    'ResidualWrapper', 'TensorFlowOpLayer', 'ThresholdedReLU'}
# Layers that all three libraries read alike after the changes of this module.
_KERAS_LAYERS = {
    'Activation', 'ActivityRegularization', 'Add', 'AdditiveAttention',
    'AlphaDropout', 'Attention', 'Average', 'AveragePooling1D', 'AveragePooling2D',
    'AveragePooling3D', 'BatchNormalization', 'Bidirectional', 'Concatenate', 'Conv1D', 'Conv2D',
    'Conv2DTranspose', 'Conv3D', 'Conv3DTranspose', 'ConvLSTM2D', 'Cropping1D', 'Cropping2D',
    'Cropping3D', 'Dense', 'DepthwiseConv2D', 'Dot', 'Dropout', 'ELU', 'Embedding', 'Flatten',
    'GRU', 'GRUCell', 'GaussianDropout', 'GaussianNoise', 'GlobalAveragePooling1D',
    'GlobalAveragePooling2D', 'GlobalAveragePooling3D', 'GlobalMaxPooling1D', 'GlobalMaxPooling2D',
    'GlobalMaxPooling3D', 'InputLayer', 'LSTM', 'LSTMCell', 'LayerNormalization', 'LeakyReLU',
    'Masking', 'MaxPooling1D', 'MaxPooling2D', 'MaxPooling3D', 'Maximum', 'Minimum', 'Multiply',
    'PReLU', 'Permute', 'RNN', 'ReLU', 'RepeatVector', 'Reshape', 'SeparableConv1D',
    'SeparableConv2D', 'SimpleRNN', 'SimpleRNNCell', 'Softmax', 'SpatialDropout1D',
    'SpatialDropout2D', 'SpatialDropout3D', 'StackedRNNCells', 'Subtract', 'TimeDistributed',
    'UpSampling1D', 'UpSampling2D', 'UpSampling3D', 'ZeroPadding1D', 'ZeroPadding2D',
    'ZeroPadding3D'}
# The arguments to leave out: how the class name begins, another argument of Keras's class, by which
# it is recognized, the argument, and whether any other value than False or None has an effect.
_LEFT_OUT = (
    ('', 'return_sequences', 'time_major', True),
    ('', 'use_scale', 'causal', True),
    ('SeparableConv', 'depthwise_initializer', 'kernel_initializer', False),
    ('SeparableConv', 'depthwise_initializer', 'kernel_regularizer', False),
    ('SeparableConv', 'depthwise_initializer', 'kernel_constraint', False),
    ('SpatialDropout', 'rate', 'noise_shape', True),
    ('SpatialDropout', 'rate', 'trainable', False))


class NotPortable(Exception):
  """Keras 3 cannot load the model, or would compute something else."""


def portable_model(config: Config) -> Config:
  """Returns the configuration of the model, with changes that only concern Keras 3.

  Raises:
    NotPortable: Keras 3 cannot load the model, or would compute something else.
  """
  if config['class_name'] not in _NETWORKS:
    raise NotPortable('{} is a subclass of tf.keras.Model'.format(config['class_name']))
  config = copy.deepcopy(config)
  _rewrite(config)
  return config


def _rewrite(layer: Config) -> None:
  """Rewrites the configuration of a layer or model, {'class_name': ..., 'config': {...}}."""
  name, options = layer['class_name'], layer['config']
  if '/' in str(options.get('name')):
    raise NotPortable('the name {} contains a slash'.format(options['name']))
  if name in _NOT_IN_KERAS_3:
    raise NotPortable('Keras 3 has no {}'.format(name))
  if name == 'Lambda':
    raise NotPortable('a Lambda layer contains code for a version of Python')
  if name == 'Sequential':
    _rewrite_sequential(options)
  elif name == 'Model':
    _rewrite_functional(options)
  else:
    _rewrite_initializers(options)
    if name in _KERAS_LAYERS:
      _rewrite_keras_layer(name, options)


def _rewrite_initializers(options: Config) -> None:
  """Removes the dtype from the initializers in the configuration of a layer."""
  for initializer in dicts_in(options):
    if (initializer.get('class_name') in _INITIALIZERS
        and isinstance(initializer.get('config'), dict)):
      dtype = initializer['config'].pop('dtype', 'float32')
      if dtype != 'float32':
        raise NotPortable('an initializer of {} has the dtype {}'.format(
            options.get('name'), dtype))


def dicts_in(value: Any) -> Iterator[Config]:
  """Yields the dicts in a value of a configuration, from the outside to the inside."""
  if isinstance(value, dict):
    yield value
    value = list(value.values())
  if isinstance(value, list):
    for item in value:
      yield from dicts_in(item)


def _rewrite_keras_layer(name: str, options: Config) -> None:
  """Rewrites the configuration of a layer of Keras, and of the layers that it wraps."""
  if 'hard_sigmoid' in (options.get('activation'), options.get('recurrent_activation')):
    raise NotPortable('hard_sigmoid of {} has another slope in Keras 3'.format(options['name']))
  if isinstance(options.get('axis'), list) and len(options['axis']) > 1:
    raise NotPortable('{} has several axes'.format(options['name']))
  for prefix, other_argument, argument, has_effect in _LEFT_OUT:
    if name.startswith(prefix) and other_argument in options and argument in options:
      if has_effect and options[argument]:
        raise NotPortable('Keras 3 has no argument {} of {}'.format(argument, name))
      del options[argument]
  for argument in ('layer', 'backward_layer', 'cell', 'cells'):
    wrapped = options.get(argument)
    for layer in wrapped if isinstance(wrapped, list) else [wrapped]:
      if isinstance(layer, dict):
        _rewrite_wrapped_layer(layer)


def _rewrite_wrapped_layer(layer: Config) -> None:
  """Rewrites the configuration of a layer inside another layer."""
  _rewrite(layer)
  if layer['class_name'] in _NETWORKS:
    layer['module'] = 'keras'
  elif layer['class_name'] in _KERAS_LAYERS:
    layer['module'] = 'keras.layers'
    layer['config'].pop('batch_input_shape', None)  # Only the outer layer has an input layer.
    axis = layer['config'].get('axis')
    if isinstance(axis, list):
      layer['config']['axis'] = axis[0]


def _rewrite_sequential(options: Config) -> None:
  """Rewrites the layers of a Sequential model, and inserts its InputLayer."""
  layers = options['layers']
  for layer in layers:
    _rewrite(layer)
  first = layers[0]['config'] if layers else {}
  if 'batch_input_shape' in first and layers[0]['class_name'] != 'InputLayer':
    layers.insert(0, {'class_name': 'InputLayer', 'config': {
        'batch_input_shape': first.pop('batch_input_shape'), 'dtype': first.get('dtype'),
        'sparse': False, 'name': first['name'] + '_input'}})


def _rewrite_functional(options: Config) -> None:
  """Rewrites the layers of a functional model, and repeats the calls of the models inside it."""
  models = set()
  options['layers'] = portable_lambda.replace_scaled_sums(options['layers'])
  for layer in options['layers']:
    if _counts_calls_from_one(layer):
      models.add(layer['name'])
      _check_repeatable(layer)
      layer['inbound_nodes'] = [
          repeated for call in layer['inbound_nodes']
          for repeated in (call, _in_inference_mode(call))]
    _check_calls(layer)
    _rewrite(layer)
  for reference in _references_in([[layer['inbound_nodes'] for layer in options['layers']],
                                   options['input_layers'], options['output_layers']]):
    if reference[0] in models:
      reference[1] = 2 * reference[1] - 1
  for key in ('input_layers', 'output_layers'):
    if isinstance(options[key], list) and len(options[key]) == 1:
      options[key] = options[key][0]


def _check_calls(layer: Config) -> None:
  """Raises NotPortable if a call of the layer has an argument that Keras 3 does not restore."""
  for call in layer['inbound_nodes']:
    references = list(_references_in(call))
    if not isinstance(call, list) or len(references) > len(call) or (
        len(call) > 1 and 'return_sequences' in layer['config']):
      raise NotPortable('{} has another layer as an argument'.format(layer['name']))


def _counts_calls_from_one(layer: Config) -> bool:
  """Returns whether the layer is a model that was called on its own inputs when it was built."""
  if layer['class_name'] == 'Sequential' and layer['config']['layers']:
    first = layer['config']['layers'][0]
    return 'batch_input_shape' in first['config'] or _counts_calls_from_one(first)
  return layer['class_name'] == 'Model'


def _check_repeatable(model: Config) -> None:
  """Raises NotPortable if a repeated call of the model could have an effect on training."""
  for layer in dicts_in(model):
    options = layer.get('config')
    if 'class_name' in layer and isinstance(options, dict) and 'name' in options and (
        layer['class_name'] not in _KERAS_LAYERS.union(_NETWORKS, _NOT_IN_KERAS_3)
        or layer['class_name'] == 'ActivityRegularization'
        or options.get('activity_regularizer') or options.get('stateful')):
      raise NotPortable('{} in {} may have an effect on training when it is called twice'.format(
          options['name'], model['config']['name']))


def _in_inference_mode(call: List[Any]) -> List[Any]:
  """Returns a copy of a call, [[layer, index, output, arguments], ...], without updates."""
  call = copy.deepcopy(call)
  for reference in _references_in(call):
    if len(reference) == 4:
      reference[3].setdefault('training', False)
  return call


def _references_in(value: Any) -> Iterator[List[Any]]:
  """Yields the references to outputs, [layer, index, output] or with arguments as a fourth item."""
  if isinstance(value, dict):
    value = list(value.values())
  if not isinstance(value, list):
    return
  if len(value) in (3, 4) and isinstance(value[0], str):
    yield value
    value = value[3:]  # Arguments can refer to outputs, too.
  for item in value:
    yield from _references_in(item)

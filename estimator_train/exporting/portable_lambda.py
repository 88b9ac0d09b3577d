"""Replaces the Lambda layers of InceptionResNetV2 in the configuration of a model by other layers.

A Lambda layer is saved as code for one version of Python, which neither tf_keras on a newer Python
nor Keras 3 loads. `tf.keras.applications.InceptionResNetV2` has Lambda layers that add a scaled
residual: `inputs[0] + inputs[1] * scale`. Keras has no layer that multiplies by a constant, but
LeakyReLU multiplies numbers that are not positive. A number is the difference of its negative part
and the opposite of its positive part, one of which is 0, so the result and its gradient are those
of the Lambda layer bit by bit.
"""

import base64
import marshal
from typing import Any, Dict, List, Sequence

Config = Dict[str, Any]

_SCALED_SUM = (lambda inputs, scale: inputs[0] + inputs[1] * scale).__code__
_COMPARED = ('co_argcount', 'co_code', 'co_consts', 'co_names', 'co_varnames')


def replace_scaled_sums(layers: Sequence[Config]) -> List[Config]:
  """Returns the layers of a functional model, with other layers in place of scaled sums."""
  names = {layer['name'] for layer in layers}
  replaced: List[Config] = []
  for layer in layers:
    parts = _parts(layer) if _is_scaled_sum(layer) else [layer]
    has_new_names = not names.intersection(part['name'] for part in parts[:-1])
    replaced += parts if has_new_names else [layer]
  return replaced


def _is_scaled_sum(layer: Config) -> bool:
  """Returns whether the layer is a Lambda layer with exactly the code of `_SCALED_SUM`."""
  if layer['class_name'] != 'Lambda' or layer['config'].get('function_type') != 'lambda':
    return False
  code_text, defaults, closure = layer['config']['function']
  # The code is not executed, and this process has written it.
  code = marshal.loads(base64.b64decode(code_text))
  scale = layer['config'].get('arguments', {}).get('scale')
  return (defaults is None and closure is None and len(layer['inbound_nodes']) == 1
          and len(layer['inbound_nodes'][0]) == 2 and isinstance(scale, float) and 0 <= scale <= 1
          and all(getattr(code, name) == getattr(_SCALED_SUM, name) for name in _COMPARED))


def _parts(layer: Config) -> List[Config]:
  """Returns the layers that compute a scaled sum; the last one has the name of the Lambda layer."""
  name, scale = layer['name'], layer['config']['arguments']['scale']
  parts: List[Config] = []

  def add(class_name: str, part: str, inputs: List[Any], **options: Any) -> List[Any]:
    part_name = '_'.join([name, part]) if part else name
    parts.append({'name': part_name, 'class_name': class_name, 'config': dict(
        options, name=part_name, trainable=True, dtype='float32'), 'inbound_nodes': [inputs]})
    return [part_name, 0, 0, {}]

  shortcut, residual = layer['inbound_nodes'][0]
  positive = add('ReLU', 'positive', [residual], max_value=None, negative_slope=0., threshold=0.)
  negative = add('Subtract', 'negative', [residual, positive])
  opposite = add('Subtract', 'opposite', [negative, residual])
  scaled = [add('LeakyReLU', 'scaled_negative', [negative], alpha=scale),
            add('LeakyReLU', 'scaled_opposite', [opposite], alpha=scale)]
  add('Add', '', [shortcut, add('Subtract', 'scaled', scaled)])
  return parts

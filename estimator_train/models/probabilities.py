"""From a model's outputs to the probabilities of the classes."""

import tensorflow.compat.v1 as tf


def from_outputs(model: tf.keras.Model, outputs: tf.Tensor) -> tf.Tensor:
  """Returns the outputs of a compiled model, or their softmax where they are logits.

  Args:
    model: its loss says what its outputs are; where that does not, its last operation does.
    outputs: of the model, float [B, num_classes].
  """
  config = model.loss.get_config() if isinstance(model.loss, tf.keras.losses.Loss) else {}
  name = model.loss if isinstance(model.loss, str) else getattr(model.loss, '__name__', '')
  are_probabilities = model.outputs[0].op.type == 'Softmax' or name.endswith('crossentropy')
  return tf.nn.softmax(outputs) if config.get('from_logits', not are_probabilities) else outputs

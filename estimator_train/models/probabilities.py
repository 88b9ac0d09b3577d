"""Computes class probabilities from the outputs of a model."""

import tensorflow.compat.v1 as tf


def from_outputs(model: tf.keras.Model, outputs: tf.Tensor) -> tf.Tensor:
  """Returns the outputs of a compiled model if they are probabilities, or else their softmax.

  Args:
    model: a compiled model. If its loss has the option `from_logits`, the option determines whether
      the outputs are logits. Otherwise, the outputs are probabilities if the last operation is a
      softmax, or if the loss is a cross-entropy function or the name of such a function.
    outputs: the outputs of the model, float [B, num_classes].
  """
  config = model.loss.get_config() if isinstance(model.loss, tf.keras.losses.Loss) else {}
  name = model.loss if isinstance(model.loss, str) else getattr(model.loss, '__name__', '')
  are_probabilities = model.outputs[0].op.type == 'Softmax' or name.endswith('crossentropy')
  return tf.nn.softmax(outputs) if config.get('from_logits', not are_probabilities) else outputs

"""Handles the forms of features that Estimators accept: tensors, tuples, dicts, and weights."""

from typing import Any, Dict, Tuple

import tensorflow.compat.v1 as tf


def split_weights(features: Any) -> Tuple[Any, Any]:
  """Returns the features without sample weights, and the weights; None: there are no weights.

  Args:
    features: features in any form, or `{'features': ..., 'sample_weights': ...}`.
  """
  if isinstance(features, dict) and set(features) == {'features', 'sample_weights'}:
    return features['features'], features['sample_weights']
  return features, None


def call_model(model: tf.keras.Model, features: Any) -> Dict[str, tf.Tensor]:
  """Returns the outputs of a model by name.

  Args:
    model: a model that is defined by its inputs and outputs.
    features: a tensor, a tuple or list in the order of the inputs, or a dict by the names of the
      inputs; or `{'features': ..., 'sample_weights': ...}`.
  """
  features, _ = split_weights(features)
  if isinstance(features, dict):
    features = [features[name] for name in model.input_names]
  tensors = list(features) if isinstance(features, (list, tuple)) else [features]
  outputs = model(tensors if len(tensors) > 1 else tensors[0])
  return dict(zip(model.output_names, outputs if isinstance(outputs, list) else [outputs]))

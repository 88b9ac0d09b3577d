"""Checks that the examples that a user's functions make fit the inputs and outputs of the model."""

from typing import Any, Callable, Dict, List, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.models import model_inputs
from estimator_train.tf_patches import training_endpoints

BatchCheck = Callable[[Any, Any], None]


def make_batch_check(model: tf.keras.Model, dataset_name: str) -> BatchCheck:
  """Makes a function that checks the features and labels of a batch, before the model is copied.

  The function raises a UserError if the names, the number, the types or the shapes of the features
  or labels do not fit the model. Labels may be None. The shapes of labels are checked only for
  losses of Keras, because a loss of the user may take labels of any shape.

  Args:
    model: the compiled model.
    dataset_name: the value of `--dataset`, for error messages.
  """
  outputs_to_check = training_endpoints.outputs_with_labels_of_their_shape(model)
  given = '--dataset=' + dataset_name

  def check(features: Any, labels: Any) -> None:
    features, _ = model_inputs.split_weights(features)
    inputs = _by_name(features, model.input_names, 'features', 'input', given)
    for name, expected in zip(model.input_names, model.inputs):
      if (inputs[name].dtype == tf.string) != (expected.dtype == tf.string):
        raise _shape_error('features', name, given, inputs[name], expected)
      _check_shape('features', name, given, inputs[name], expected)
    if labels is None:
      return
    targets = _by_name(labels, model.output_names, 'labels', 'output', given)
    for name, expected in zip(model.output_names, model.outputs):
      if name in outputs_to_check:
        _check_shape('labels', name, given, targets[name], expected)

  return check


def _by_name(tensors: Any, names: Sequence[str], kind: str, part: str,
             given: str) -> Dict[str, tf.Tensor]:
  """Returns the tensors by the names of inputs or outputs; raises a UserError if these differ."""
  if isinstance(tensors, dict):
    if set(tensors) != set(names):
      raise UserError('the {} must have the names of the {}s of the model'.format(kind, part),
                      '{}: {}, expected {}'.format(given, ', '.join(sorted(tensors)),
                                                   ', '.join(sorted(names))),
                      'rename them, or name the layers')
    return tensors
  found: List[Any] = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
  if len(found) != len(names):
    raise UserError('there must be {} for each {} of the model'.format(kind, part),
                    '{}: {} for {}'.format(given, len(found), ', '.join(names)),
                    'give a tuple in this order, or a dict by these names')
  return dict(zip(names, found))


def _check_shape(kind: str, name: str, given: str, tensor: tf.Tensor, expected: tf.Tensor) -> None:
  """Raises a UserError if a batch does not have the shape of an input or output."""
  is_flat_column = (kind == 'labels' and tensor.shape.ndims == 1 and expected.shape.ndims == 2
                    and expected.shape[1].value == 1)
  if not (tensor.shape.is_compatible_with(expected.shape) or is_flat_column):
    raise _shape_error(kind, name, given, tensor, expected)


def _shape_error(kind: str, name: str, given: str, tensor: tf.Tensor,
                 expected: tf.Tensor) -> UserError:
  return UserError('the {} do not fit the model'.format(kind),
                   '{}: {} is {} {}, expected {} {}'.format(
                       given, name, tensor.dtype.name, tensor.shape, expected.dtype.name,
                       expected.shape),
                   'change the shape or dtype in the function of the split, or the model; a split '
                   'yields single examples, not batches')

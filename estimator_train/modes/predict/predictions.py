"""Makes the dict that describes the prediction for an example, and the columns of a CSV file.

If the outputs of the model are not finite, the dict has an `error` instead of the outputs.
"""

from typing import Any, Dict, Iterable, List, Optional, Sequence, Union

import numpy as np

from estimator_train.data import TOP_K
from estimator_train.modes.predict.output_file import Column
from estimator_train.reports.evaluation import convert_to_probabilities
from estimator_train.system import names

# An output with one of these names has the key `output_NAME` in a prediction.
_RESERVED_KEYS = ('file', 'example', 'error')
_NOT_FINITE = "the model's outputs are not finite"


def make_columns(identity_column: str, class_names: Sequence[str],
                 output_shapes: Dict[str, Sequence[Optional[int]]]) -> List[Column]:
  """Returns the columns of a CSV file of predicted classes or, without classes, of outputs.

  Args:
    identity_column: `file` or `example`, which identifies the example.
    output_shapes: the shapes of the outputs for one example, by name.
  """
  if not class_names:
    return make_output_columns(identity_column, output_shapes)
  return [*(Column(name, (name,)) for name in (identity_column, 'label', 'probability')),
          *(Column('top{}_{}'.format(rank + 1, key), ('top', rank, key))
            for rank in range(min(TOP_K, len(class_names))) for key in ('label', 'probability')),
          Column('error', ('error',))]


def _make_output_keys(output_names: Iterable[str]) -> List[str]:
  return names.make_distinct(output_names, _RESERVED_KEYS, 'output_')


def make_output_columns(identity_column: str,
                        output_shapes: Dict[str, Sequence[Optional[int]]]) -> List[Column]:
  """Returns a column per number of an output that is a vector, and a column per other output."""
  lengths = {key: shape[0] if len(shape) == 1 and shape[0] not in (None, 1) else None
             for key, shape in zip(_make_output_keys(output_shapes), output_shapes.values())}
  columns = [Column(identity_column, (identity_column,))]
  used_names = {identity_column, 'error',
                *(key for key, length in lengths.items() if length is None)}
  for key, length in lengths.items():
    if length is None:
      columns.append(Column(key, (key,)))
      continue
    prefix = key
    while not used_names.isdisjoint('{}_{}'.format(prefix, index) for index in range(length)):
      prefix = 'output_' + prefix
    number_columns = [Column('{}_{}'.format(prefix, index), (key, index))
                      for index in range(length)]
    used_names.update(column.name for column in number_columns)
    columns += number_columns
  return columns + [Column('error', ('error',))]


def make_class_prediction(identity: Dict[str, Any], outputs: np.ndarray,
                          class_names: Sequence[str]) -> Dict[str, Any]:
  """Returns the items of `identity`, and `label`, `probability` and `top` of the prediction.

  Args:
    identity: identifies the example; see identify_input and Source.identify_example.
    outputs: float [num_classes].
  """
  if not np.isfinite(outputs).all():
    return dict(identity, error=_NOT_FINITE)
  probabilities = convert_to_probabilities(outputs)
  # Only the largest outputs are sorted, because there may be many classes. Mergesort is stable:
  # like np.argmax, it chooses the first of several equal outputs.
  num_top = min(TOP_K, len(outputs))
  candidates = np.flatnonzero(outputs >= np.partition(outputs, -num_top)[-num_top])
  top_indices = candidates[np.argsort(-outputs[candidates], kind='mergesort')[:TOP_K]]
  top = [{'label': class_names[index], 'probability': float(probabilities[index])}
         for index in top_indices]
  return {**identity, **top[0], 'top': top}


def make_output_prediction(identity: Dict[str, Any],
                           outputs: Dict[str, np.ndarray]) -> Dict[str, Any]:
  """Returns the items of `identity`, and the outputs as lists or single values."""
  if not all(isinstance(values, bytes) or values.dtype == object or np.isfinite(values).all()
             for values in outputs.values()):
    return dict(identity, error=_NOT_FINITE)
  return {**identity, **dict(zip(_make_output_keys(outputs), map(_to_json, outputs.values())))}


def _to_json(values: Any) -> Any:
  """Converts an output of one example, an array or bytes, to nested lists or a single value."""
  if isinstance(values, bytes):
    return values.decode('utf-8', 'surrogateescape')
  items = values.reshape(()) if values.shape == (1,) else values
  if items.dtype == object:
    items = np.vectorize(_to_json, otypes=[object])(items)
  return items.tolist()


def identify_input(name: Union[bytes, int]) -> Dict[str, Any]:
  """Identifies an example by its name; see images.ExampleOrError."""
  if isinstance(name, int):
    return {'example': name}
  # `encode('utf-8', 'surrogateescape')` restores the bytes of the name.
  return {'file': name.decode('utf-8', 'surrogateescape')}

"""Defines the results of the public functions.

A result is the dict that the program prints as JSON. Its keys are also attributes. The annotations
of the classes list the keys that results usually have, so that editors complete them.
"""

import html
import itertools
import os
from contextlib import ExitStack
from typing import Any, Dict, Generator, Iterator, List, Optional, Sequence

from estimator_train.errors import UserError

_MAX_WIDTH = 100
_MAX_VALUE_LENGTH = 100  # Longer values are shortened in the text of a result.


class Result(Dict[str, Any]):
  """A dict whose keys are also attributes. Dicts in it are Results, too."""
  __slots__ = ()

  def __init__(self, values: Dict[str, Any]) -> None:
    super().__init__({name: _wrap(value) for name, value in values.items()})

  def to_dict(self) -> Dict[str, Any]:
    """Returns a copy that consists of plain dicts, lists and values."""
    return {name: _unwrap(value) for name, value in self.items()}

  def __reduce__(self) -> Any:
    return type(self), (self.to_dict(),)

  def __getattr__(self, name: str) -> Any:
    try:
      return self[name]
    except KeyError:
      raise AttributeError('{} has no value {!r}: it has {}'.format(
          type(self).__name__, name, ', '.join([*self, *(
              name for name in dir(type(self))
              if isinstance(getattr(type(self), name), property))]))) from None

  def __dir__(self) -> List[str]:
    return sorted({*super().__dir__(), *filter(str.isidentifier, self)})

  def __repr__(self) -> str:
    items = ['{}={}'.format(name, _format_value(value)) for name, value in self.items()]
    text = '{}({})'.format(type(self).__name__, ', '.join(items))
    if len(text) <= _MAX_WIDTH:
      return text
    return '{}(\n  {})'.format(type(self).__name__, ',\n  '.join(items))


class RunResult(Result):
  """The result of a function that writes to the folder of a run.

  In a notebook, it is shown as a table of the figures with a link to the page.

  Attributes:
    mode: the mode of the program.
    model_dir: the folder of the run.
  """
  __slots__ = ()
  mode: str
  model_dir: str

  @property
  def page(self) -> Optional[str]:
    """The path of the report page; None if there is none."""
    path = self.get('page') or os.path.join(
        self.get('evaluation_dir') or self['model_dir'], 'report', 'index.html')
    return path if os.path.isfile(path) else None

  def _repr_html_(self) -> str:
    """Returns a table of the figures, and a link to the page, for a notebook."""
    rows = [(name, _format_cell(value)) for kinds in ((int, float), (str,))  # Numbers first.
            for name, value in self.items() if isinstance(value, kinds)]
    cells = ''.join('<tr><td style="text-align: left">{}</td><td style="text-align: left">{}</td>'
                    '</tr>'.format(html.escape(name), html.escape(value)) for name, value in rows)
    page, link = self.page, ''
    if page is not None:
      # Jupyter opens relative links, but no links to files outside of the folder of the notebook.
      link = '<p><a href="{}" target="_blank">report page</a></p>'.format(
          html.escape(os.path.relpath(page)))
    return '<table>{}</table>{}'.format(cells, link)


class TrainingResult(RunResult):
  """The result of `train`.

  Without an evaluation, there are only the values of the training. The metrics of the model are
  attributes, too.

  Attributes:
    global_step: the number of steps of all runs in `model_dir`.
    checkpoint: the path of the last checkpoint.
    accuracy: the fraction of the test examples that are classified correctly.
    average_loss: the mean loss per test example.
    examples: the number of test examples.
    best: the metric, the checkpoint and the step of the best evaluation.
    steps_run: the number of steps of this run.
    train_loss: the loss of the last training steps.
    examples_per_sec: the throughput, without the first steps.
    verdict: what limits the throughput.
    stopped_early: why the training ended before the last step.
    export: the result of the export, with `export_dir`.
  """
  __slots__ = ()
  global_step: int
  checkpoint: str
  accuracy: float
  average_loss: float
  calibration_error: float
  macro_f1: float
  macro_precision: float
  macro_recall: float
  top_5_accuracy: float
  examples: int
  best: Result
  steps_run: int
  train_loss: float
  examples_seen: int
  examples_per_sec: Optional[float]
  time_to_first_step_secs: Optional[float]
  steady_state: bool
  verdict: str
  stopped_early: str
  skipped_images: List[Any]
  export: Result


class EvaluationResult(RunResult):
  """The result of `evaluate`.

  The metrics of the model are attributes, too.

  Attributes:
    global_step: the step of the checkpoint.
    checkpoint: the path of the checkpoint.
    accuracy: the fraction of the test examples that are classified correctly.
    average_loss: the mean loss per test example.
    examples: the number of test examples.
    evaluation_dir: the folder of the evaluation, if it is not that of the run.
    differs_from_run: how the evaluation differs from that of the run.
  """
  __slots__ = ()
  global_step: int
  checkpoint: str
  accuracy: float
  average_loss: float
  calibration_error: float
  macro_f1: float
  macro_precision: float
  macro_recall: float
  top_5_accuracy: float
  examples: int
  skipped_images: List[Any]
  evaluation_dir: str
  differs_from_run: List[str]


class ExportResult(Result):
  """The result of `export`.

  Attributes:
    path: the folder or file of the exported version.
    format: the value of `export_format`.
    checkpoint: the path of the checkpoint.
    global_step: the step of the checkpoint.
    signatures: the signatures of a SavedModel.
    inputs, outputs: the inputs and outputs of an ONNX model.
  """
  __slots__ = ()
  mode: str
  model_dir: str
  path: str
  format: str
  checkpoint: str
  global_step: int
  signatures: List[str]
  inputs: Any
  outputs: Any


class LearningRateResult(RunResult):
  """The result of `lr_find`.

  Attributes:
    learning_rate: the suggested rate, at which the loss decreases fastest; None if it does not
      decrease.
    min_loss_rate: the rate at which the loss is smallest.
    has_diverged: whether the loss diverged before the highest rate.
    points: for each step, `learning_rate`, `loss` and `smoothed_loss`.
  """
  __slots__ = ()
  learning_rate: Optional[float]
  min_loss_rate: Optional[float]
  has_diverged: bool
  points: List[Result]


class ReportResult(RunResult):
  """The result of `report`.

  Attributes:
    runs: for each run, `folder`, `examples_per_sec`, `steps_per_sec`, `accuracy` and
      `average_loss`.
  """
  __slots__ = ()
  runs: List[Result]


class Prediction(Result):
  """The prediction of an example.

  For examples without classes, the outputs of the model are attributes by their names.

  Attributes:
    file: the path of the file, or `PATH:INDEX` for an image, row or record in a file.
    example: the index of the example in arrays, columns, rows or a data set.
    label: the most probable class.
    probability: the probability of this class.
    top: the most probable classes, each with `label` and `probability`.
    error: why the example could not be predicted. There are no other values then.
  """
  __slots__ = ()
  file: str
  example: int
  label: str
  probability: float
  top: List[Result]
  error: str


class Predictions(Iterator[Prediction]):
  """An iterator over predictions, which are computed during the iteration.

  An index, such as `predictions[0]`, computes and keeps the predictions up to there. A slice or a
  negative index computes all of them.

  Args:
    batches: yields lists of dicts.
    resources: what the batches require, such as the model. Released after the iteration; may
      translate an exception that ends it.
  """

  def __init__(self, batches: Iterator[Sequence[Dict[str, Any]]], resources: ExitStack) -> None:
    self._predictions = _iter_predictions(batches, resources)
    self._resources = resources
    self._num_returned = 0
    self._indexed: List[Prediction] = []  # The first predictions, if an index has required them.

  def __next__(self) -> Prediction:
    prediction = (self._indexed[self._num_returned] if self._num_returned < len(self._indexed)
                  else next(self._predictions))
    self._num_returned += 1
    return prediction

  def __getitem__(self, index: Any) -> Any:
    if self._num_returned > len(self._indexed):
      raise UserError('predictions are not kept after the iteration has returned them',
                      'the index {!r}'.format(index), 'index list(predict(...))')
    is_from_start = isinstance(index, int) and index >= 0
    self._indexed += itertools.islice(
        self._predictions, max(index + 1 - len(self._indexed), 0) if is_from_start else None)
    return self._indexed[index]

  def close(self) -> None:
    """Releases the model. The iteration then has no further predictions."""
    self._predictions.close()
    self._resources.close()  # A generator that has not been started does not close them.

  def __del__(self) -> None:
    self.close()

  def __repr__(self) -> str:
    return '<predictions, computed during the iteration: use list() or a for loop>'


def _iter_predictions(batches: Iterator[Sequence[Dict[str, Any]]],
                      resources: ExitStack) -> Generator[Prediction, None, None]:
  with resources:
    for batch in batches:
      yield from map(Prediction, batch)


def _wrap(value: Any) -> Any:
  if type(value) is dict:
    return Result(value)
  return list(map(_wrap, value)) if isinstance(value, list) else value


def _unwrap(value: Any) -> Any:
  if isinstance(value, Result):
    return value.to_dict()
  return list(map(_unwrap, value)) if isinstance(value, list) else value


def _format_value(value: Any) -> str:
  """Formats a value in the text of a result: numbers have six digits, and long lists no items."""
  if isinstance(value, float):
    return '{:.6g}'.format(value)
  if isinstance(value, Result):
    items, brackets = ['{!r}: {}'.format(name, _format_value(item))
                       for name, item in value.items()], '{}'
  elif isinstance(value, list):
    items, brackets = list(map(_format_value, value)), '[]'
  else:
    return repr(value)
  text = ', '.join(items)
  return '{0}{2}{1}'.format(*brackets, text if len(text) <= _MAX_VALUE_LENGTH
                            else '... {:,} items'.format(len(items)))


def _format_cell(value: Any) -> str:
  return '{:.4g}'.format(value) if isinstance(value, float) else str(value)

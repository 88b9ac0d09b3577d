"""From what an evaluation counted to `evaluation.json`."""

import logging
from typing import Any, Dict, Optional, Sequence

from estimator_train.files import atomic
from estimator_train.reports import samples
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import groups

_LOG = logging.getLogger('estimator_train')
FILE = 'evaluation.json'


def write(settings: groups.Run, labels: Sequence[str], counted: Dict[str, Any],
          some: Sequence[Any]) -> Dict[str, Any]:
  """Writes `evaluation.json` and some of the examples; returns the evaluation's headline figures.

  Args:
    settings: of the run.
    labels: the class names.
    counted: `accuracy`, `average_loss`, `examples`, `confusion_matrix`, `global_step` and
      `checkpoint`.
    some: examples, as samples.py takes them.
  """
  figures = dict(counted, per_class=per_class(labels, counted['confusion_matrix']))
  run_dir = RunDir(settings.model_dir)
  atomic.write_json(run_dir.file(FILE), figures)
  samples.write(run_dir.path, labels, some)
  _LOG.info('accuracy %.4f, average loss %.4f over %d examples at step %d', counted['accuracy'],
            counted['average_loss'], counted['examples'], counted['global_step'])
  return {'mode': settings.mode, 'model_dir': settings.model_dir,
          **{name: counted[name] for name in (
              'global_step', 'checkpoint', 'accuracy', 'average_loss', 'examples')}}


def per_class(labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> Dict[str, Dict[str, Any]]:
  """Works out precision, recall and support of each class.

  Args:
    labels: the class names.
    matrix: a row a true class, a column a predicted class, in the order of the labels.

  Returns:
    By label: `precision` (None where nothing was predicted to be of the class), `recall` (None
    where no example is of it) and `support`, the number of its examples.
  """
  figures = {}
  for index, label in enumerate(labels):
    support = sum(matrix[index])
    predicted = sum(row[index] for row in matrix)
    figures[label] = {'precision': _ratio(matrix[index][index], predicted),
                      'recall': _ratio(matrix[index][index], support),
                      'support': support}
  return figures


def _ratio(part: int, whole: int) -> Optional[float]:
  return part / whole if whole else None

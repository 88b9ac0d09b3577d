"""Each value of each report file, of another type or range: reported, or shown without errors."""

import copy
import json
import types
from pathlib import Path

import numpy as np
import pytest

from estimator_train.modes import report
from estimator_train.reports import evaluation, page, report_files
from estimator_train.system import storage

EXAMPLE = Path(__file__).with_name('example_run')
PATHS = {name: Path(report_files.path_to(str(EXAMPLE), name)) for name in report_files.CHECKS}
CONTENTS = {name: json.loads(path.read_text()) for name, path in PATHS.items() if path.exists()}
SAMPLE = {'label': 'a', 'predicted': 'b', 'probability': .5, 'image': 'x.png'}
CONTENTS['samples'] = {'samples': [SAMPLE], 'mistakes': [SAMPLE]}
CONTENTS['evaluation'].update(loss=.5, regularization_loss=.1, per_class={
    name: {'precision': .5, 'recall': .5, 'f1': None, 'support': 4} for name in 'ab'},
                              confusion_matrix=[[3, 1], [0, 4]])
CONTENTS['curves']['learning_rate'] = [[1, .1]]
del CONTENTS['scaling']['table'][2:]
OTHER_VALUES = (None, 'text', True, [], {}, [[1, [2]]], {'a': 'b'}, -1, 0, .5, 1e-300, 1e99,
                10 ** 400, 2 ** 52)
EMPTY = page.PageData(*[{} for _ in page.PageData._fields])


def changed(value):
  """Yields copies of a value in which a part has another value, or is missing."""
  yield from OTHER_VALUES
  keys = list(value) if isinstance(value, dict) else range(min(len(value), 1)) if isinstance(
      value, list) else ()
  for key in keys:
    for part in changed(value[key]):
      other = copy.copy(value)
      other[key] = part
      yield other
    other = copy.copy(value)
    del other[key]
    yield other


@pytest.mark.parametrize('name', PATHS)
def test_what_passes_the_check_can_be_shown(tmp_path, monkeypatch, name):
  monkeypatch.setattr(storage, 'write_bytes', lambda path, content: None)
  good = CONTENTS[name]
  checked = report_files.CHECKS[name](good)
  assert {key: checked[key] for key in good} == good
  num_refused = 0
  for content in changed(good):
    try:
      checked = report_files.CHECKS[name](content)
    except ValueError:
      num_refused += 1
      continue
    data = EMPTY._replace(**{name: checked or {}})
    try:
      page.write_page('', data, str(tmp_path))
      report._make_table([page.ComparedRun('a', 'a', data), page.ComparedRun('b', 'b', EMPTY)])
    except Exception as error:
      raise AssertionError('{!r} of {}'.format(error, content)) from error
  assert num_refused > 10


def test_probabilities_that_do_not_add_up_to_one_exactly(tmp_path):
  """As those of a softmax in float16."""
  sample = types.SimpleNamespace(image=np.zeros([2, 2, 1]), class_index=0,
                                 probabilities=np.array([1.0005, 0.], np.float32), identity={})
  evaluation.write_samples(str(tmp_path), 'ab', [sample], [])
  assert page.read_page_data(str(tmp_path)).samples['samples'][0]['label'] == 'a'

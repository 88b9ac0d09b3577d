"""What a folder tells of the runs before."""

import pytest

from estimator_train.run_dir.run_files import RunDir

FILE = 'batch_sizes.json'


@pytest.fixture
def folder(tmp_path):
  """Of steps of 10 examples, from the fifth on of 30, from the eighth on of 20."""
  for step, examples in ((0, 10), (5, 30), (8, 20)):
    RunDir(str(tmp_path)).record_batch_size(step, examples)
  return tmp_path


@pytest.mark.parametrize('step, seen', [(0, 0), (3, 30), (5, 50), (6, 80), (8, 140), (10, 180)])
def test_examples_seen(folder, step, seen):
  assert RunDir(str(folder)).examples_seen(step, 7) == seen


def test_steps_that_were_lost_do_not_count(folder):
  RunDir(str(folder)).record_batch_size(6, 1)
  assert (folder / FILE).read_text() == '[[0, 10], [5, 30], [6, 1]]\n'
  RunDir(str(folder)).record_batch_size(2, 10)
  assert (folder / FILE).read_text() == '[[0, 10]]\n'


@pytest.mark.parametrize('content', [None, '', '[[0]]', '{"a": 1}', '[[0, null]]'])
def test_a_folder_that_does_not_say(tmp_path, content):
  if content is not None:
    (tmp_path / FILE).write_text(content)
  assert RunDir(str(tmp_path)).examples_seen(4, 7) == 28
  RunDir(str(tmp_path)).record_batch_size(4, 5, examples_seen=28)
  assert RunDir(str(tmp_path)).examples_seen(6, 9) == 28 + 10

"""What a folder records of the runs before."""

from estimator_train.run_dir import RunDir

FILE = 'batch_sizes.json'


def test_examples_seen_by_steps_of_several_sizes(tmp_path):
  run_dir = RunDir(str(tmp_path))
  for step, examples in ((0, 10), (5, 30), (8, 20)):
    run_dir.record_batch_size(step, examples)
  for step, seen in ((0, 0), (3, 30), (5, 50), (6, 80), (8, 140), (10, 180)):
    assert run_dir.examples_seen(step, 7) == seen
  # Steps that were lost do not count.
  run_dir.record_batch_size(6, 1)
  assert (tmp_path / FILE).read_text() == '[[0, 10], [5, 30], [6, 1]]\n'
  run_dir.record_batch_size(2, 10)
  assert (tmp_path / FILE).read_text() == '[[0, 10]]\n'


def test_a_folder_without_a_record(tmp_path):
  run_dir = RunDir(str(tmp_path))
  assert run_dir.examples_seen(4, 7) == 28
  run_dir.record_batch_size(4, 5, examples_seen=28)
  assert run_dir.examples_seen(6, 9) == 28 + 10

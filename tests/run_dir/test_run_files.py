"""What a folder records of the runs before."""

from estimator_train.run_dir import RunDir


def test_examples_seen_by_steps_of_several_sizes(tmp_path):
  run_dir = RunDir(str(tmp_path))
  assert run_dir.examples_seen(4, 7) == 28  # Without a record.
  run_dir.record_batch_size(4, 5, examples_seen=28)
  assert run_dir.examples_seen(6, 9) == 28 + 10
  for step, examples in ((0, 10), (5, 30), (8, 20)):
    run_dir.record_batch_size(step, examples)
  for step, seen in ((0, 0), (3, 30), (5, 50), (6, 80), (8, 140), (10, 180)):
    assert run_dir.examples_seen(step, 7) == seen
  run_dir.record_batch_size(6, 1)  # Steps that were lost do not count.
  assert (tmp_path / 'batch_sizes.json').read_text() == '[[0, 10], [5, 30], [6, 1]]\n'

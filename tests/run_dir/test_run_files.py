"""What a folder records of the runs before."""

from estimator_train.run_dir import RunDir


def test_batch_sizes_of_steps_that_were_lost_do_not_count(tmp_path):
  """tests/modes/test_training_modes.py has runs with several batch sizes."""
  run_dir = RunDir(str(tmp_path))
  for step, examples in ((0, 10), (5, 30), (8, 20), (6, 1)):
    run_dir.record_batch_size(step, examples)
  assert [run_dir.examples_seen(step, 7) for step in (0, 3, 5, 6, 8)] == [0, 30, 50, 80, 82]

"""`--mode=download`, end to end; tests/data has those of the downloads themselves."""

from mode_runs import fails, publish_generated_files

from estimator_train.data import mnist


def test_what_is_there_and_what_is_not(run_well, run_program, tmp_path, monkeypatch):
  publish_generated_files(tmp_path, monkeypatch)
  flags = ('--mode=download', '--dataset=fashion_mnist', '--data_dir', tmp_path)
  done = run_well(*flags)
  assert [file['downloaded'] for file in done.result['files']] == [False] * 4
  assert [file['name'] for file in done.result['files']] == [
      file.name for file in mnist.FASHION_MNIST_FILES]
  missing = mnist.FASHION_MNIST_FILES[1].name
  (tmp_path / missing).unlink()
  for mode in ((), ('--mode=train', '--train_steps=1', '--model_dir', tmp_path / 'model')):
    done = run_program(*flags, *mode)  # Training downloads what is missing.
    assert fails(done, 'cannot download {}: '.format(missing))
    assert 'copy the file {} '.format(missing) in done.err and str(tmp_path) in done.err
  assert not (tmp_path / missing).exists() and not (tmp_path / 'model' / 'flags.txt').exists()
  assert run_well('--mode=download', '--dataset=fashion_mnist_sample').result['files'] == []

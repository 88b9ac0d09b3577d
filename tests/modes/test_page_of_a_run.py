"""The page that a run leaves, and what keeps it from doing so."""

import json
import os

import pytest

from estimator_train.files import atomic
from estimator_train.reports import page

pytestmark = pytest.mark.page
pytest.importorskip('matplotlib', reason='the extra `report` is not installed')


@pytest.fixture
def arguments(tmp_path):
  return ['--model=own_models:two_layers', '--batch_size=50', '--train_steps=8',
          '--throughput_warmup_steps=2', '--log_every_steps=2', '--model_dir={}'.format(tmp_path)]


def test_training_and_evaluation_are_on_the_page(run_program, arguments, tmp_path):
  assert run_program('--eval_every_steps=4', *arguments).code == 0
  text = (tmp_path / 'report' / 'index.html').read_text()
  for part in ('own_models:two_layers', 'Ankle boot', '--throughput_warmup_steps', 'bound'):
    assert part in text
  pictures = {path.name for path in (tmp_path / 'report').glob('*.png')}
  assert {'loss.png', 'accuracy.png', 'step-time.png', 'step-histogram.png',
          'confusion-matrix.png', 'sample-00.png'} <= pictures
  curves = json.loads((tmp_path / 'report' / 'curves.json').read_text())
  assert [step for step, _ in curves['eval_accuracy']] == [4, 8]
  assert len(curves['train_loss']) >= 3


def test_another_mode_adds_to_it(run_program, arguments, tmp_path):
  assert run_program('--mode=train', *arguments).code == 0
  path = tmp_path / 'report' / 'index.html'
  before = path.read_text()
  assert run_program('--mode=evaluate', *arguments).code == 0
  assert 'confusion-matrix' not in before and 'onfusion matrix' in path.read_text()


def test_left_out(run_program, arguments, tmp_path):
  assert run_program('--noreport_page', *arguments).code == 0
  assert not (tmp_path / 'report' / 'index.html').exists()


def test_a_page_that_cannot_be_written_does_not_undo_the_run(run_program, arguments, tmp_path,
                                                             monkeypatch):
  def full(path, content):
    if path.endswith('.png') and 'sample' not in os.path.basename(path):
      raise OSError(28, 'No space left on device')
    return write_bytes(path, content)

  write_bytes = atomic.write_bytes
  monkeypatch.setattr(page.atomic, 'write_bytes', full)
  done = run_program(*arguments)
  assert done.code == 0 and done.result['examples'] == 1000
  assert 'the report page could not be written: [Errno 28] No space left' in done.err

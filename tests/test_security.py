"""Attacks that concern the whole program; SECURITY.md lists the tests of the others.

The rules in ruff.toml forbid functions that can run code contained in data.
"""

import html
import os
import re
import stat
from pathlib import Path

import keras_applications
import numpy as np
import pytest

KEY = 'the-secret-key'
HOSTILE = ('<script>alert(1)<', '"\'><img src=x onerror=alert(1)>', '{{ 7 * 7 }}')


@pytest.mark.page
@pytest.mark.parametrize('umask', [0o002, 0o077], ids=oct)
def test_a_whole_run(run_well, umask, tmp_path, write_images, monkeypatch):
  """Classes of hostile names, files for the user's group, and Kaggle's key in the environment."""
  monkeypatch.setenv('KAGGLE_USERNAME', 'user')
  monkeypatch.setenv('KAGGLE_KEY', KEY)
  data, made = tmp_path / 'data', tmp_path / 'made'
  write_images({data / label / '{}.png'.format(index): np.full((8, 8, 1), 9 * index, np.uint8)
                for label in HOSTILE for index in range(3)})
  pattern = '{}/*/*.png'.format(data)
  before = os.umask(umask)
  try:
    done = run_well(
        '--dataset=image_folder', '--train_pattern=' + pattern, '--eval_pattern=' + pattern,
        '--image_size=8,8', '--batch_size=3', '--model=own_models:two_layers', '--train_steps=2',
        '--trace_steps=1:2', '--on_bad_image=skip', '--verbosity=1',
        '--cache={}'.format(made / 'cache'), '--model_dir={}'.format(made / 'model'))
  finally:
    os.umask(before)

  paths = {str(path.relative_to(made)): path for path in [made, *made.rglob('*')]}
  assert {'cache', 'model/eval', 'model/keras', 'model/model.h5', 'model/checkpoint',
          'model/report/index.html'} <= set(paths)
  for path in paths.values():
    assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~umask, path

  texts = [done.out.encode(), done.err.encode()]
  texts += [path.read_bytes() for path in made.rglob('*') if path.is_file()]
  assert not [text[:80] for text in texts if KEY.encode() in text]

  assert (made / 'model' / 'labels.txt').read_text().splitlines() == sorted(HOSTILE)
  # tests/reports/test_page.py has what a browser would find.
  page = (made / 'model' / 'report' / 'index.html').read_text(encoding='utf-8')
  assert not any(label in page for label in HOSTILE[:2])
  assert all(page.count(text) >= 2 for text in (html.escape(HOSTILE[0]), HOSTILE[2]))


def test_weights_come_over_tls():
  """Not all of Keras's networks have checksums."""
  addresses = [address for path in Path(keras_applications.__file__).parent.glob('*.py')
               for address in re.findall(r"""['"]([a-z]+)://""", path.read_text())]
  assert len(addresses) >= 10 and set(addresses) == {'https'}


@pytest.mark.parametrize('flag', ['--model', '--dataset', '--hooks'])
def test_a_name_that_is_no_door_imports_nothing(run_program, tmp_path, flag):
  for name in ('os', 'os.path', 'os.system', '../datasets', 'datasets', 'download', 'sys:exit.x',
               'estimator_train.models', 'eval:x'):
    given = {'--dataset': 'synthetic', flag: name}
    done = run_program('--train_steps=1', '--model_dir={}'.format(tmp_path / 'made'),
                       *map('='.join, given.items()))
    assert done.code == 2 and name in done.err and 'Traceback' not in done.err

"""Credentials for Kaggle: found, and never shown."""

import json

import pytest

from estimator_train.doctor import kaggle_key

SECRET = 'a0b1c2d3e4'


def check(folder, needed=False, **environment):
  sources = kaggle_key.find_credentials(dict(environment, KAGGLE_CONFIG_DIR=str(folder)))
  finding = kaggle_key.check_credentials(sources, needed)
  assert SECRET not in repr((sources, finding))
  return finding


def write(folder, text, mode=0o600):
  path = folder / 'kaggle.json'
  path.write_text(text)
  path.chmod(mode)


WHOLE = json.dumps({'username': SECRET, 'key': SECRET})


@pytest.mark.parametrize('text, mode, level, found', [
    (WHOLE, 0o600, 'ok', 'credentials in '),
    (WHOLE, 0o644, 'warning', 'other users may read'),
    (WHOLE, 0o620, 'ok', 'credentials in '),
    (json.dumps({'username': SECRET}), 0o600, 'warning', 'lacks'),
    (SECRET, 0o600, 'warning', 'cannot be read'),
    (json.dumps([SECRET]), 0o600, 'warning', 'lacks'),
], ids=['whole', 'open', 'not readable', 'half', 'no JSON', 'a list'])
def test_file(tmp_path, text, mode, level, found):
  write(tmp_path, text, mode)
  finding = check(tmp_path)
  assert finding.level == level and found in finding.found
  assert found != 'other users may read' or 'chmod 600 ' in finding.remedy


@pytest.mark.parametrize('needed, level', [(False, 'ok'), (True, 'warning')])
def test_none(tmp_path, needed, level):
  finding = check(tmp_path, needed)
  assert finding.level == level and 'no credentials' in finding.found


def test_environment(tmp_path):
  assert check(tmp_path, KAGGLE_USERNAME=SECRET, KAGGLE_KEY=SECRET).found == (
      'credentials in the environment')
  finding = check(tmp_path, KAGGLE_USERNAME=SECRET)
  assert finding.level == 'warning' and 'KAGGLE_USERNAME is set without' in finding.found


def test_usual_folders(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  assert kaggle_key.find_credentials({}).path == str(tmp_path / '.kaggle' / 'kaggle.json')
  (tmp_path / '.config' / 'kaggle').mkdir(parents=True)
  assert kaggle_key.find_credentials({}).path == str(
      tmp_path / '.config' / 'kaggle' / 'kaggle.json')
  (tmp_path / '.kaggle').mkdir()
  assert kaggle_key.find_credentials({}).path == str(tmp_path / '.kaggle' / 'kaggle.json')


def test_in_the_image_the_folder_must_be_mounted(tmp_path):
  sources = kaggle_key.find_credentials({'KAGGLE_CONFIG_DIR': str(tmp_path)})
  assert '/tmp/.kaggle' in kaggle_key.check_credentials(sources, True, in_image=True).remedy
  assert 'mage' not in kaggle_key.check_credentials(sources, True).remedy

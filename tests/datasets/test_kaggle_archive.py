"""Archives from a local server that behaves like Kaggle's API: what differs from other downloads."""

import base64
import json
import logging
import re
import shutil
import sys

import file_server
import pytest
from file_server import API_PATH, BODY, HALF, KEY, SIGNATURE, STORAGE_PATH, ranged, send, whole

from estimator_train.datasets import kaggle_archive, transfer, unpack
from estimator_train.errors import UserError

API, STORAGE = API_PATH + 'owner/name', STORAGE_PATH
PART = 'name.zip.part'
HALF_LEFT = {PART: BODY[:HALF]}


@pytest.fixture
def server(monkeypatch, tmp_path):
  monkeypatch.setattr(transfer, 'CHUNK_BYTES', 1000)
  with file_server.kaggle(monkeypatch, tmp_path / 'config', 'owner/name') as server:
    yield server


@pytest.fixture
def log(caplog):
  caplog.set_level(logging.DEBUG)
  return caplog


@pytest.fixture
def path(tmp_path):
  (tmp_path / 'data').mkdir()
  return tmp_path / 'data' / 'name.zip'


def fetch(path, needed=256000):
  return kaggle_archive.fetch_archive('owner/name', str(path), needed)


def content(path):
  return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def starts(server):
  """Returns the first byte of each request that came to the storage."""
  return [start for path, start in server.requests if path == STORAGE]


# What is there of the archive, the answers of the storage, and the bytes that are asked for.
ARRIVALS = {
    'plain': (None, [ranged()], [None]),
    'cut': (None, [ranged(cut_after=1000), ranged(cut_after=HALF), ranged()],
            [None, 1000, 1000 + HALF]),
    # Cuts after much are no failures.
    'cut often': (None, [ranged(cut_after=10000)] * 20 + [ranged()],
                  [None] + list(range(10000, 200001, 10000))),
    'a byte': (BODY[:1], [ranged()], [1]),
    'all but a byte': (BODY[:-1], [ranged()], [len(BODY) - 1]),
    'all': (BODY, [ranged()], [len(BODY)]),
    'longer': (BODY + b'more', [ranged()], [len(BODY) + 4, None]),
}


@pytest.mark.parametrize('part, answers, requests', ARRIVALS.values(), ids=list(ARRIVALS))
def test_the_archive_arrives(server, path, monkeypatch, log, capsys, part, answers, requests):
  monkeypatch.setattr(transfer, 'PROGRESS_BYTES', 10000)
  server.answers[STORAGE] = list(answers)
  if part is not None:
    path.with_name(PART).write_bytes(part)
  assert fetch(path) == ('name.zip', len(BODY), True)
  assert content(path) == {'name.zip': BODY} and starts(server) == requests
  # The address of the storage expires.
  assert [name for name, _ in server.requests] == [API, STORAGE] * len(requests)
  messages = [record.getMessage() for record in log.records if record.name == 'estimator_train']
  assert messages[0] == 'downloading owner/name from Kaggle' + (
      ', resuming after {} bytes'.format(len(part)) if part else '')
  assert re.match(r'downloaded name.zip \(256000 bytes\) in \d+\.\d s$', messages[-1])
  assert not capsys.readouterr().out
  monkeypatch.delenv('KAGGLE_KEY')
  file_server.forget_kaggle(monkeypatch)
  assert fetch(path) == ('name.zip', len(BODY), False)
  assert len(starts(server)) == len(requests)


SIGN_IN = 'create an API key at kaggle.com/settings'


@pytest.mark.parametrize('status, remedy', [
    (401, 'the key is wrong or expired: ' + SIGN_IN),
    (403, 'check at kaggle.com/datasets/owner/name that this user may download it'),
    (404, 'check that kaggle.com/datasets/owner/name still exists'),
    (429, 'try again later'), (503, 'try again later')])
@pytest.mark.parametrize('place', [API, STORAGE])
def test_http_errors(server, path, status, remedy, place):
  path.with_name(PART).write_bytes(BODY[:HALF])
  server.answers[place] = [whole(code=status)]
  with pytest.raises(UserError, match='^cannot download owner/name from Kaggle: HTTP {} .* for the '
                     'user user: {}'.format(status, remedy)):
    fetch(path)
  assert len(server.requests) <= 2 and content(path) == HALF_LEFT


def storage_without_server(handler, start):
  send(handler, 302, b'', {'Location': 'http://localhost:1/storage?' + SIGNATURE})


@pytest.mark.parametrize('place, answer, environment, message, is_kept', [
    (STORAGE, whole(Content_Type='text/html; charset=utf-8'), {},
     'received a page of type text/html; .*check the network', True),
    (STORAGE, whole(Content_Length=None), {}, 'HTTP 200 with Content-Length None.*, tried 5 times',
     False),
    (STORAGE, ranged(cut_after=0), {}, 'interrupted|IncompleteRead', True),
    (API, storage_without_server, {}, 'Connection refused', True),
    (API, None, {'KAGGLE_KEY': 'wrong'}, 'HTTP 403', True),
    (API, None, {'KAGGLE_CONFIG_DIR': '/dev/null/below'},
     'Not a directory: set KAGGLE_CONFIG_DIR to a writable', True),
    # The server is no proxy, but would hear of a request that is sent without TLS.
    (API, None, {'KAGGLE_PROXY': '', 'KAGGLE_API_ENDPOINT': 'https://kaggle.invalid'},
     'Tunnel connection failed: 501', True),
    (API, None, {'KAGGLE_PROXY': '', 'KAGGLE_API_ENDPOINT': 'http://kaggle.invalid'},
     'must use TLS: http://kaggle.invalid: check', True),
    (API, None, {'KAGGLE_PROXY': '', 'KAGGLE_API_ENDPOINT': 'http://localhost.kaggle.invalid'},
     'must use TLS: http://localhost.kaggle.invalid: check', True),
])
def test_what_ends_in_an_error(server, path, monkeypatch, place, answer, environment, message,
                               is_kept):
  path.with_name(PART).write_bytes(BODY[:HALF])
  server.answers[place] = [answer or server.answers[place][0]]
  for name, value in environment.items():
    monkeypatch.setenv(name, value or server.address)
  if 'KAGGLE_PROXY' in environment:
    monkeypatch.delenv('no_proxy')
  with pytest.raises(UserError, match=message) as caught:
    fetch(path)
  assert SIGNATURE not in str(caught.value) and content(path) == (HALF_LEFT if is_kept else {})
  assert not server.requests or 'KAGGLE_PROXY' not in environment


def test_sent_on_to_an_address_without_tls(server, path):
  server.answers[API] = [file_server.sign_in_and_redirect('//kaggle.invalid/storage?' + SIGNATURE)]
  with pytest.raises(UserError, match='must use TLS: http://kaggle.invalid: ') as caught:
    fetch(path)
  assert SIGNATURE not in str(caught.value) and not content(path)


@pytest.mark.parametrize('config, argv', [
    (None, []), ('', []), ('{"username": "user"', []), ('{"username": "user"}', []), ('[]', []),
    # With such an argument, the package does without credentials, and says nothing.
    (None, ['program', '-v'])])
def test_no_credentials(server, path, monkeypatch, tmp_path, capsys, config, argv):
  monkeypatch.delenv('KAGGLE_KEY')
  monkeypatch.setattr(sys, 'argv', argv or sys.argv)
  if config is not None:
    (tmp_path / 'config').mkdir()
    (tmp_path / 'config' / 'kaggle.json').write_text(config)
  with pytest.raises(UserError) as caught:
    fetch(path)
  assert str(caught.value) == (
      'Kaggle requires credentials: no KAGGLE_USERNAME and KAGGLE_KEY, and no kaggle.json with '
      'both: create an API key at kaggle.com/settings, and put its kaggle.json into ~/.kaggle (or '
      'the folder KAGGLE_CONFIG_DIR), or set KAGGLE_USERNAME and KAGGLE_KEY; or download the '
      'archive of kaggle.com/datasets/owner/name to {}'.format(path))
  assert not content(path) and not server.requests and not capsys.readouterr().out


def test_package_that_ends_the_process(path, monkeypatch, tmp_path):
  """As releases before 1.5.13 did."""
  file_server.forget_kaggle(monkeypatch)
  (tmp_path / 'kaggle').mkdir()
  (tmp_path / 'kaggle' / '__init__.py').write_text('print("no key"); exit(1)')
  monkeypatch.syspath_prepend(str(tmp_path))
  with pytest.raises(UserError, match='Kaggle requires credentials'):
    fetch(path)


def test_credentials_from_the_file_and_no_secret_in_the_log(server, path, monkeypatch, tmp_path,
                                                            capsys, log):
  monkeypatch.delenv('KAGGLE_USERNAME')
  monkeypatch.delenv('KAGGLE_KEY')
  (tmp_path / 'config').mkdir()
  file = tmp_path / 'config' / 'kaggle.json'
  file.write_text(json.dumps({'username': 'user', 'key': KEY}))
  file.chmod(0o644)  # The package prints a warning about this.
  server.answers[STORAGE] = [ranged(cut_after=10), ranged()]
  fetch(path)
  assert content(path) == {'name.zip': BODY}
  assert re.search('kaggle: Warning: .* readable by other users .*chmod 600', log.text)
  out, err = capsys.readouterr()
  own = ''.join(record.getMessage() for record in log.records if record.name == 'estimator_train')
  assert not out and SIGNATURE not in own + err
  for secret in (KEY, base64.b64encode(b'user:' + KEY.encode()).decode()):
    assert secret not in log.text + err


def test_disk_too_small(server, path, monkeypatch):
  usage = shutil.disk_usage('/')
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage._replace(free=4000000))
  path.with_name(PART).write_bytes(BODY[:HALF])
  with pytest.raises(UserError, match='the disk is too small: {} has 4,000,000 bytes free, 4,000,001 '
                     'are required: free some space, or choose a --data_dir on a larger'.format(
                         path.parent)):
    fetch(path, 4000000 + HALF + 1)
  assert not server.requests and content(path) == HALF_LEFT
  fetch(path, 4000000 + HALF)
  assert content(path) == {'name.zip': BODY}


def test_the_archive_is_for_unpack_to_check(server, path, tmp_path):
  fetch(path)
  with pytest.raises(UserError, match='damaged, or not a zip file'):
    unpack.unpack_zip(str(path), str(tmp_path))

"""Downloads of published files, and of archives by Kaggle's API, from a local server that
misbehaves as configured. Kaggle's key stays with Kaggle, and nothing is taken from an impostor."""

import base64
import functools
import hashlib
import logging
import ssl
import subprocess
import sys
import threading
import traceback

import file_server
import pytest
from conftest import contents_of
from file_server import (
  API_PATH,
  BODY,
  DEADLINE_SECS,
  HALF,
  KEY,
  SIGNATURE,
  ranged,
  whole,
  write_files,
)

from estimator_train.data import DataFile, download, oct2017
from estimator_train.errors import UserError

API, STORAGE = API_PATH + oct2017.KAGGLE_DATASET, file_server.STORAGE_PATH
NAME, PART, MD5 = 'name.zip', 'name.zip.part', hashlib.md5(BODY).hexdigest()
FLIPPED = BODY[:1000] + b'!' + BODY[1001:]
# As Kaggle's package reads the key, as it travels, and what lets anyone download.
SECRETS = (KEY, base64.b64encode(b'user:' + KEY.encode()).decode(), SIGNATURE)


@pytest.fixture
def server(monkeypatch, tmp_path):
  with file_server.kaggle(monkeypatch, tmp_path / 'config', oct2017.KAGGLE_DATASET) as server:
    server.answers['/b'] = [ranged()]
    yield server


@pytest.fixture
def folder(tmp_path):
  return tmp_path / 'made' / 'on the way'


def fetch_file(server, folder):
  """Fetches the file from two addresses."""
  file = DataFile(NAME, len(BODY), MD5, (server.address + '/a', server.address + '/b'))
  return download.download_files([file], str(folder))[0]


def fetch_archive(server, folder):
  path = str(folder / NAME)
  downloaded = download.fetch_file(path, len(BODY), functools.partial(
      oct2017.receive_archive, path))
  return NAME, len((folder / NAME).read_bytes()), downloaded


def check_secrets(text, folder):
  texts = [text] + [path.read_bytes().decode('latin-1') for path in folder.rglob('*')]
  assert not [text for text in texts if any(secret in text for secret in SECRETS)]


def starts(*from_a, b=()):
  return [('/a', start) for start in from_a] + [('/b', start) for start in b]


def from_kaggle(*of_requests):
  """The address of the storage expires."""
  return [(path, start) for start in of_requests for path in (API, STORAGE)]


# What is there, the answers of the first server or the storage, and what is asked for.
ARRIVALS = {
    'plain': (None, [ranged()], starts(None)),
    'cut': (None, [ranged(cut_after=1000), ranged(cut_after=HALF), ranged()],
            starts(None, 1000, 1000 + HALF)),
    'no ranges': (BODY[:HALF], [whole()], starts(HALF)),
    'longer': (BODY + b'more', [ranged()], starts(len(BODY) + 4, None)),
    'half and wrong': (FLIPPED[:HALF], [ranged()], starts(HALF, None)),
    '416': (BODY[:HALF], [whole(code=416), ranged()], starts(HALF, None)),
    'other start': (BODY[:HALF], [ranged(content_range='bytes 0-{1}/{2}'), ranged()],
                    starts(HALF, None)),
    # The second server has it.
    'other page': (None, [whole(b'log in first', length=12)], starts(None, b=[None])),
    'flipped and cut': (None, [ranged(FLIPPED, cut_after=10000)],
                        starts(None, 10000, 20000, 30000, 40000, b=[50000, None])),
    'silent': (None, [], None),
    # Cuts after much are no failures.
    'kaggle cut often': (None, [ranged(cut_after=10000)] * 20 + [ranged()],
                         from_kaggle(None, *range(10000, 200001, 10000)))}


@pytest.mark.parametrize('kind', ARRIVALS)
def test_the_file_arrives(server, folder, monkeypatch, capsys, caplog, kind):
  caplog.set_level(logging.INFO, 'estimator_train')
  part, answers, requests = ARRIVALS[kind]
  fetch = fetch_archive if 'kaggle' in kind else fetch_file
  if fetch is fetch_archive:
    monkeypatch.setattr(download, 'PROGRESS_BYTES', 10000)
  if kind == 'silent':
    monkeypatch.setattr(download, 'TIMEOUT_SECS', .2)
    asked_again = threading.Event()
    answers = [ranged(before_rest=lambda: asked_again.wait(DEADLINE_SECS)),
               lambda *given: [asked_again.set(), ranged()(*given)]]
  server.answers.update({'/a': list(answers), STORAGE: list(answers)})
  write_files(folder, {} if part is None else {PART: part})
  assert fetch(server, folder) == (NAME, len(BODY), True) and contents_of(folder) == {NAME: BODY}
  assert server.requests == requests or kind == 'silent' and server.requests[1][1] < HALF + 1
  if kind == 'plain':
    assert caplog.messages[1:] == ['{}: {} %'.format(PART, part) for part in (25, 51, 76, 100)]
  count = len(server.requests)
  monkeypatch.delenv('KAGGLE_KEY')
  file_server.forget_kaggle(monkeypatch)
  assert fetch(server, folder) == (NAME, len(BODY), False) and len(server.requests) == count
  assert not capsys.readouterr().out


@pytest.mark.parametrize('place, answer, message, more', [
    (API, whole(code=403), 'HTTP 403 .* for the user user: .* at kaggle.com/datasets/.* that this '
     'user may download it', 0),
    (STORAGE, whole(code=404), 'HTTP 404 ', 0),
    (STORAGE, whole(content_type='text/html'), 'a page of type text/html.*check the network', 0),
    (STORAGE, ranged(cut_after=1000), 'interrupted after .*, tried 5 times', 5000),
    (API, file_server.sign_in_and_redirect('//kaggle.invalid/storage?' + SIGNATURE),
     'a request without TLS is refused', 0),
    (API, None, 'a request without TLS is refused', 0)])
def test_archives_that_cannot_be_downloaded(server, folder, monkeypatch, caplog, place, answer,
                                            message, more):
  caplog.set_level(logging.DEBUG)
  write_files(folder, {PART: BODY[:HALF]})
  server.answers[place] = [answer]
  if answer is None:
    monkeypatch.setenv('KAGGLE_API_ENDPOINT', 'http://localhost.kaggle.invalid')
  with pytest.raises(UserError, match=message) as caught:
    fetch_archive(server, folder)
  assert contents_of(folder) == {PART: BODY[:HALF + more]}
  check_secrets(caplog.text + str(caught.value), folder)
  # Of causes, which nobody is shown, the key alone: addresses in them are of this request.
  causes = ''.join(traceback.format_exception(caught.type, caught.value, caught.tb))
  assert not [secret for secret in SECRETS[:2] if secret in causes]


def test_no_server_has_the_file(server, folder):
  server.answers.update({'/a': [ranged(FLIPPED)], '/b': [whole(code=404)]})
  with pytest.raises(UserError, match='http.*/a .wrong md5 .*, http.*/b .HTTP 404 Not Found.: try '
                     'again, or copy the file {} .256000 bytes, md5 {}. to {}$'.format(
                         NAME, MD5, folder)):
    fetch_file(server, folder)


def test_what_needs_no_request(server, tmp_path):
  """A wrong file is found before the others are downloaded."""
  write_files(tmp_path, {NAME: BODY})
  assert not fetch_file(server, tmp_path).downloaded
  for data_dir in (tmp_path / NAME, tmp_path / NAME / 'below'):
    with pytest.raises(UserError, match='{}: .*with 256,000 bytes of free'.format(data_dir)):
      fetch_file(server, data_dir)
  for wrong in (b'mine', FLIPPED):
    write_files(tmp_path, {NAME: wrong})
    file = DataFile(NAME, len(BODY), MD5, (server.address + '/a',))
    with pytest.raises(UserError, match='published one: {}/{} has {} bytes, md5 .*, expected '
                       '256000 bytes, md5 {}: remove it'.format(tmp_path, NAME, len(wrong), MD5)):
      download.download_files([file._replace(name='other'), file], str(tmp_path))
    assert contents_of(tmp_path)[NAME] == wrong and not server.requests


@pytest.mark.parametrize('fault, expected, message', [
    (KeyboardInterrupt(), KeyboardInterrupt, None),
    (OSError(27, 'File too large'), UserError, 'File too large: .*256,000 bytes')])
def test_a_fault_keeps_the_part(server, folder, monkeypatch, fault, expected, message):
  def fail(*unused_args):
    raise fault

  server.answers['/a'] = [ranged()]
  with monkeypatch.context() as patch, pytest.raises(expected, match=message):
    patch.setattr('tqdm.tqdm.update', fail)
    fetch_file(server, folder)
  kept = contents_of(folder)[PART]
  assert kept and BODY.startswith(kept) and fetch_file(server, folder).downloaded
  assert server.requests == starts(None, len(kept)) and contents_of(folder) == {NAME: BODY}


# A package that ends the process is as releases before 1.5.13. With -v, the package does without
# credentials, and says nothing.
@pytest.mark.parametrize('files, argv', [
    ({'config/kaggle.json': b'[]'}, ['program', '-v']),
    ({'kaggle/__init__.py': b'print("no key"); exit(1)'}, ['program'])])
def test_no_credentials(server, folder, monkeypatch, tmp_path, capsys, files, argv):
  monkeypatch.delenv('KAGGLE_KEY')
  monkeypatch.setattr(sys, 'argv', argv)
  monkeypatch.syspath_prepend(str(tmp_path))
  write_files(tmp_path, files)
  with pytest.raises(UserError, match='Kaggle requires credentials: .*: create an API key at .*; '
                     'or download the archive of kaggle.com/.* to {}'.format(folder / NAME)):
    fetch_archive(server, folder)
  assert contents_of(folder) == {PART: b''} and not server.requests and not capsys.readouterr().out


def test_nothing_is_sent_to_or_taken_from_an_impostor(server, folder, monkeypatch, tmp_path):
  key, certificate = str(tmp_path / 'key.pem'), str(tmp_path / 'certificate.pem')
  subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256',
                  '-nodes', '-subj', '/CN=localhost', '-keyout', key, '-out', certificate],
                 check=True, stderr=subprocess.DEVNULL, timeout=DEADLINE_SECS)
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  context.load_cert_chain(certificate, key)
  server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
  server.http.handle_error = lambda *unused_arguments: None
  server.address = 'https://localhost:{}'.format(server.http.server_port)
  monkeypatch.setenv('KAGGLE_API_ENDPOINT', server.address)
  for fetch in (fetch_file, fetch_archive):
    with pytest.raises(UserError, match='certificate verify failed|CERTIFICATE_VERIFY'):
      fetch(server, folder)
  assert not server.requests and contents_of(folder) == {PART: b''}

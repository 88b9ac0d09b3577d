"""Downloads of published files, and of archives by Kaggle's API, from a local server that
misbehaves as configured. Kaggle's key stays with Kaggle, and nothing is taken from an impostor."""

import base64
import functools
import hashlib
import itertools
import logging
import re
import ssl
import subprocess
import sys
import traceback
from unittest import mock

import file_server
import pytest
from conftest import contents_of, wait_until
from file_server import API, BODY, HALF, KEY, SIGNATURE, STORAGE, ranged, whole, write_files

from estimator_train.data import DataFile, download, oct2017
from estimator_train.errors import UserError
from estimator_train.system.progress import ProgressBar

NAME, PART, MD5 = 'name.zip', 'name.zip.part', hashlib.md5(BODY).hexdigest()
FLIPPED = BODY[:1000] + b'!' + BODY[1001:]
# As Kaggle's package reads the key, as it travels, and what lets anyone download.
SECRETS = (KEY, base64.b64encode(b'user:' + KEY.encode()).decode(), SIGNATURE)


@pytest.fixture
def server(monkeypatch, tmp_path):
  monkeypatch.setattr(download, 'PROGRESS_BYTES', 20000)
  with file_server.kaggle(monkeypatch, tmp_path / 'config') as server:
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
  downloaded = download.download_if_missing(path, len(BODY), functools.partial(
      oct2017.finish_archive_download, path))
  return NAME, len((folder / NAME).read_bytes()), downloaded


def silent(handler, start):
  """Sends half, and then nothing until there is another request."""
  ranged(cut_after=HALF)(handler, start)
  wait_until(lambda: len(handler.server.requests) > 1, file_server.DEADLINE_SECS)


def drip(handler, start):
  """Sends one byte, and then nothing until there is another request."""
  ranged(cut_after=1)(handler, start)
  wait_until(lambda: len(handler.server.requests) > 1, file_server.DEADLINE_SECS)


# What is there, the answers of the first server or the storage, and which first bytes it and the
# second server are asked for.
ARRIVALS = {
    'plain': (b'', [ranged()], [None], []),
    'cut': (b'', [ranged(cut_after=1000), ranged(cut_after=HALF), ranged()],
            [None, 1000, 1000 + HALF], []),
    'no ranges': (BODY[:HALF], [whole()], [HALF], []),
    'no length': (BODY[:HALF], [whole(content_length=None)], [HALF], []),
    'half and wrong': (FLIPPED[:HALF], [ranged()], [HALF, None], []),
    'other start': (BODY[:HALF], [whole(BODY[HALF:], 206, content_range='bytes 0-255999/256000'),
                                  ranged()], [HALF, None], []),
    'other page': (b'', [whole(b'log in first')], [None], [None]),
    'flipped and cut': (b'', [ranged(FLIPPED, cut_after=10000)],
                        [None, 10000, 20000, 30000, 40000], [50000, None]),
    'silent': (b'', [silent, ranged()], [None, HALF], []),
    'dripping': (b'', [drip], [None, 1, 2, 3, 4], [5]),
    'endless': (b'', [whole(content_length=1 << 40)], [None], [None]),
    'a longer part': (BODY + b'more', [ranged()], [None], []),
    **{'redirect to ' + location: (b'', [whole(b'', 302, location=location)], [None], [None])
       for location in ('http://[::1/x', 'http://{}.example/x'.format('a' * 300),
                        'file:///etc/passwd')},
    **{'redirect to ' + location: (b'', [whole(b'', 302, location=location)], [None] * 5, [None])
       for location in ('http://localhost:99999/', 'ftp://localhost:1/x')},
    # The address of the storage expires, so that Kaggle is asked for it again.
    'kaggle, longer': (BODY + b'more', [ranged()], [len(BODY) + 4, None], []),
    'kaggle, 416': (BODY[:HALF], [whole(code=416), ranged()], [HALF, None], []),
    # Cuts after much are no failures.
    'kaggle, cut often': (b'', [ranged(cut_after=20000)] * 12 + [ranged()],
                          [None, *range(20000, 240001, 20000)], [])}


@pytest.mark.parametrize('kind', ARRIVALS)
def test_the_file_arrives(server, folder, monkeypatch, capsys, caplog, kind):
  caplog.set_level(logging.INFO, 'estimator_train')
  part, answers, first_bytes, of_second = ARRIVALS[kind]
  fetch, paths = (fetch_archive, (API, STORAGE)) if 'kaggle' in kind else (fetch_file, ('/a',))
  requests = [(path, start) for start in first_bytes for path in paths] + [
      ('/b', start) for start in of_second]
  if kind == 'dripping':
    monkeypatch.setattr(download, 'time', mock.Mock(monotonic=itertools.count(0, 9).__next__))
  if kind == 'silent':
    monkeypatch.setattr(download, 'TIMEOUT_SECS', 1.)
  server.answers[paths[-1]] = list(answers)
  write_files(folder, {PART: part})
  assert fetch(server, folder) == (NAME, len(BODY), True) and contents_of(folder) == {NAME: BODY}
  assert server.requests == requests
  if kind == 'plain':
    percentages = [re.fullmatch('name.zip.part: ([0-9]+) %', message).group(1)
                   for message in caplog.messages[1:]]
    assert 4 <= len(percentages) <= 10 and percentages[-1] == '100'
  monkeypatch.delenv('KAGGLE_KEY')
  file_server.forget_kaggle(monkeypatch)
  assert fetch(server, folder) == (NAME, len(BODY), False) and server.requests == requests
  assert not capsys.readouterr().out


@pytest.mark.parametrize('place, answer, message, more', [
    (API, whole(code=403), 'HTTP 403 .* for the user user: .* at kaggle.com/datasets/.* that this '
     'user may download it', 0),
    (STORAGE, whole(code=404), 'HTTP 404 ', 0),
    (STORAGE, whole(content_type='text/html'), 'a page of type text/html.*check the network', 0),
    (STORAGE, ranged(cut_after=1000), 'interrupted after .*, tried 5 times', 5000),
    (API, file_server.sign_in_and_redirect('//kaggle.invalid/storage?' + SIGNATURE),
     'a request without TLS is refused', 0)])
def test_archives_that_cannot_be_downloaded(server, folder, caplog, place, answer, message, more):
  caplog.set_level(logging.DEBUG)
  write_files(folder, {PART: BODY[:HALF]})
  server.answers[place] = [answer]
  with pytest.raises(UserError, match=message) as caught:
    fetch_archive(server, folder)
  assert contents_of(folder) == {PART: BODY[:HALF + more]}
  assert not [secret for secret in SECRETS if secret in caplog.text + str(caught.value)]
  # Of causes, which nobody is shown, the key alone: addresses in them are of this request.
  causes = ''.join(traceback.format_exception(caught.type, caught.value, caught.tb))
  assert not [secret for secret in SECRETS[:2] if secret in causes]


def test_no_server_has_the_file(server, folder):
  server.answers.update({'/a': [ranged(FLIPPED)], '/b': [whole(code=404)]})
  with pytest.raises(UserError, match='http.*/a .wrong md5 .*, http.*/b .HTTP 404 Not Found.: try '
                     'again, or copy the file {} .256000 bytes, md5 {}. to {}$'.format(
                         NAME, MD5, folder)):
    fetch_file(server, folder)


def test_the_first_request_is_encrypted_if_any_is(folder, monkeypatch):
  monkeypatch.setattr(download, 'append_missing_bytes', mock.Mock(
      side_effect=download.DownloadFailed))
  with pytest.raises(UserError):
    download.download_files([DataFile(NAME, 9, MD5, ('http://a/', 'https://b/'))], str(folder))
  assert [call[0][0] for call in download.append_missing_bytes.call_args_list] == ['https://b/', 'http://a/']


def test_what_needs_no_request(server, tmp_path):
  """A wrong file is found before the others are downloaded."""
  write_files(tmp_path, {NAME: BODY})
  assert not fetch_file(server, tmp_path).downloaded
  for data_dir in (tmp_path / NAME, tmp_path / NAME / 'below'):
    with pytest.raises(UserError, match='{}: .*with 256 kB of free'.format(data_dir)):
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
    (OSError(27, 'File too large'), UserError, 'set: /.*: File too large: .*256 kB')])
def test_a_fault_keeps_the_part(server, folder, fault, expected, message):
  server.answers['/a'] = [ranged()]
  with mock.patch.object(ProgressBar, 'update', side_effect=fault), \
      pytest.raises(expected, match=message):
    fetch_file(server, folder)
  kept = contents_of(folder)[PART]
  assert kept and BODY.startswith(kept) and fetch_file(server, folder).downloaded
  assert server.requests == [('/a', None), ('/a', len(kept))]
  assert contents_of(folder) == {NAME: BODY}


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
                 check=True, stderr=subprocess.DEVNULL, timeout=file_server.DEADLINE_SECS)
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  context.load_cert_chain(certificate, key)
  server.socket = context.wrap_socket(server.socket, server_side=True)
  server.handle_error = lambda *unused_arguments: None
  server.address = 'https://localhost:{}'.format(server.server_port)
  monkeypatch.setenv('KAGGLE_API_ENDPOINT', server.address)
  for fetch in (fetch_file, fetch_archive):
    with pytest.raises(UserError, match='certificate verify failed|CERTIFICATE_VERIFY'):
      fetch(server, folder)
  assert not server.requests and contents_of(folder) == {PART: b''}

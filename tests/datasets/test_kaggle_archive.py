"""kaggle_archive.fetch_archive with a local server that behaves like Kaggle's API."""

import base64
import contextlib
import http.server
import json
import logging
import re
import shutil
import socketserver
import sys
import threading

import pytest

from estimator_train.datasets import kaggle_archive, transfer, unpack
from estimator_train.errors import UserError

DEADLINE_SECS = 30.
DATASET = 'owner/name'
KEY = 'the-secret-key'
SIGNATURE = 'X-Goog-Signature=another-secret'
API_PATH = '/api/v1/datasets/download/'
BODY = bytes(range(256)) * 1000
HALF = len(BODY) // 2
CHUNK_BYTES = 1000  # A multiple of it is what a cut leaves with any release of urllib3.


class KaggleServer:
  """Two hosts in one: the interface, which asks for a key and sends on to the storage.

  Attributes:
    body: the archive.
    cuts: after how many bytes to close the connection, for each request of the archive in turn.
    api_status: what the interface answers instead of sending on.
    headers: what the storage adds to its headers or, with None, leaves out.
    ranges: the Range header of each request that came to the storage.
    api_requests: the path of each request that came to the interface.
    hold: the storage waits for this after the first half.
  """

  def __init__(self, body=BODY):
    self.body = body
    self.cuts = []
    self.api_status = None
    self.storage_status = None
    self.headers = {}
    self.ranges = []
    self.api_requests = []
    self.begun, self.hold = threading.Event(), None
    server = self

    class Handler(http.server.BaseHTTPRequestHandler):

      def do_GET(self):
        with contextlib.suppress(ConnectionError):  # The other side may be gone.
          (server.api if self.path.startswith(API_PATH) else server.storage)(self)

      def log_message(self, *unused_args):
        pass

    class Threading(socketserver.ThreadingMixIn, http.server.HTTPServer):
      daemon_threads = True

    self.http = Threading(('127.0.0.1', 0), Handler)
    self.endpoint = 'http://127.0.0.1:{}'.format(self.http.server_port)

  def api(self, handler):
    self.api_requests.append(handler.path)
    expected = 'Basic ' + base64.b64encode(b'user:' + KEY.encode()).decode()
    if self.api_status:
      handler.send_error(self.api_status)
    elif handler.headers.get('Authorization') != expected:
      handler.send_error(403)
    else:
      handler.send_response(302)
      # Another host's name, so that a client must not hand on the key.
      handler.send_header('Location', 'http://localhost:{}/storage/archive.zip?{}'.format(
          self.http.server_port, SIGNATURE))
      handler.send_header('Content-Length', '0')
      handler.end_headers()

  def storage(self, handler):
    wanted = handler.headers.get('Range')
    self.ranges.append(wanted)
    if 'Authorization' in handler.headers:
      handler.send_error(400, 'more than one authentication')
      return
    start = int(re.match(r'bytes=(\d+)-$', wanted).group(1)) if wanted else 0
    headers = {'Accept-Ranges': 'bytes', 'Content-Type': 'application/zip', 'ETag': '"1"'}
    if start >= len(self.body):
      status, content = 416, b''
      headers['Content-Range'] = 'bytes */{}'.format(len(self.body))
    else:
      status, content = 206 if wanted else 200, self.body[start:]
      if wanted:
        headers['Content-Range'] = 'bytes {}-{}/{}'.format(
            start, len(self.body) - 1, len(self.body))
    headers['Content-Length'] = str(len(content))
    headers.update(self.headers)
    handler.send_response(self.storage_status or status)
    for name, value in headers.items():
      if value is not None:
        handler.send_header(name, value)
    handler.end_headers()
    content = content[:self.cuts.pop(0)] if self.cuts else content
    if self.hold:
      handler.wfile.write(content[:HALF])
      self.begun.set()
      self.hold.wait(DEADLINE_SECS)
      content = content[HALF:]
    handler.wfile.write(content)


@contextlib.contextmanager
def kaggle_server(monkeypatch, config_dir, body=BODY):
  """A server that runs, and an environment that leads there with a user's key."""
  forget_kaggle(monkeypatch)
  server = KaggleServer(body)
  for name, value in (('no_proxy', '*'), ('KAGGLE_API_ENDPOINT', server.endpoint),
                      ('KAGGLE_CONFIG_DIR', str(config_dir)), ('KAGGLE_USERNAME', 'user'),
                      ('KAGGLE_KEY', KEY)):
    monkeypatch.setenv(name, value)
  thread = threading.Thread(target=server.http.serve_forever, kwargs={'poll_interval': 0.01})
  thread.start()
  try:
    yield server
  finally:
    server.http.shutdown()
    server.http.server_close()
    thread.join(DEADLINE_SECS)


def forget_kaggle(monkeypatch):
  """The package reads its environment when it is imported, and some of it only once."""
  for name in list(sys.modules):
    if name.split('.')[0] in ('kaggle', 'kagglesdk'):
      monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def server(monkeypatch, tmp_path):
  monkeypatch.setattr(transfer, 'CHUNK_BYTES', CHUNK_BYTES)
  with kaggle_server(monkeypatch, tmp_path / 'config') as result:
    yield result


@pytest.fixture
def log(caplog):
  caplog.set_level(logging.DEBUG)
  return caplog


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'data' / 'name.zip'


def fetch(path, needed=256000):
  return kaggle_archive.fetch_archive(DATASET, str(path), needed)


def content(path):
  return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def write_part(path, data):
  path.parent.mkdir()
  path.with_name('name.zip.part').write_bytes(data)


def test_plain(server, path, log, capsys):
  assert fetch(path) == ('name.zip', len(BODY), True)
  assert content(path) == {'name.zip': BODY}
  assert server.api_requests == [API_PATH + DATASET] and server.ranges == [None]
  messages = [record.getMessage() for record in log.records if record.name == 'estimator_train']
  assert messages[0] == 'downloading owner/name from Kaggle'
  assert messages[-2] == 'name.zip.part: 100 %'
  assert re.match(r'downloaded name.zip \(256000 bytes\) in \d+\.\d s$', messages[-1])
  assert not capsys.readouterr().out


def test_second_call_makes_no_request(server, path, monkeypatch):
  fetch(path)
  monkeypatch.delenv('KAGGLE_KEY')
  forget_kaggle(monkeypatch)
  assert fetch(path) == ('name.zip', len(BODY), False)
  assert len(server.api_requests) == 1


def test_cut_connection_is_resumed(server, path):
  server.cuts = [1000, HALF]
  fetch(path)
  assert server.ranges == [None, 'bytes=1000-', 'bytes={}-'.format(1000 + HALF)]
  assert len(server.api_requests) == 3, 'the address of the storage expires'
  assert content(path) == {'name.zip': BODY}


def test_cuts_after_much_are_no_failures(server, path, monkeypatch):
  monkeypatch.setattr(transfer, 'PROGRESS_BYTES', 10000)
  server.cuts = [10000] * 20
  fetch(path)
  assert content(path) == {'name.zip': BODY}


@pytest.mark.parametrize('size', [1, HALF, len(BODY) - 1, len(BODY)])
def test_part_is_resumed(server, path, size):
  write_part(path, BODY[:size])
  fetch(path)
  assert server.ranges == ['bytes={}-'.format(size)]
  assert content(path) == {'name.zip': BODY}


def test_part_longer_than_the_archive_starts_over(server, path):
  write_part(path, BODY + b'more')
  fetch(path)
  assert server.ranges == ['bytes=256004-', None]
  assert content(path) == {'name.zip': BODY}


@pytest.mark.parametrize('status, remedy', [
    (401, 'the key is wrong or expired: create an API key at kaggle.com/settings'),
    (403, 'check at kaggle.com/datasets/owner/name that this user may download it'),
    (404, 'check that kaggle.com/datasets/owner/name still exists'),
    (429, 'try again later'),
    (500, 'try again later'),
    (503, 'try again later'),
])
@pytest.mark.parametrize('place', ['api_status', 'storage_status'])
def test_http_errors(server, path, status, remedy, place):
  write_part(path, BODY[:HALF])
  setattr(server, place, status)
  with pytest.raises(UserError) as caught:
    fetch(path)
  assert str(caught.value).startswith(
      'cannot download owner/name from Kaggle: HTTP {} '.format(status))
  assert ' for the user user: ' + remedy in str(caught.value)
  assert len(server.api_requests) == 1
  assert content(path) == {'name.zip.part': BODY[:HALF]}


def test_page_instead_of_the_archive(server, path):
  write_part(path, BODY[:HALF])
  server.storage_status = 200
  server.headers = {'Content-Type': 'text/html; charset=utf-8', 'Content-Range': None}
  with pytest.raises(UserError, match='received a page of type text/html; .*check the network'):
    fetch(path)
  assert content(path) == {'name.zip.part': BODY[:HALF]}


def test_no_length(server, path):
  server.headers = {'Content-Length': None}
  with pytest.raises(UserError, match='HTTP 200 with Content-Length None.*, tried 5 times'):
    fetch(path)
  assert not content(path)


def test_wrong_key(server, path, monkeypatch):
  monkeypatch.setenv('KAGGLE_KEY', 'wrong')
  with pytest.raises(UserError, match='HTTP 403'):
    fetch(path)
  assert not content(path)


@pytest.mark.parametrize('config', [
    pytest.param(None, id='no file'),
    pytest.param('', id='empty file'),
    pytest.param('{"username": "user"', id='cut file'),
    pytest.param('{"username": "user"}', id='no key'),
    pytest.param('[]', id='list'),
])
def test_no_credentials(server, path, monkeypatch, tmp_path, capsys, config):
  monkeypatch.delenv('KAGGLE_KEY')
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
  assert not content(path) and not server.api_requests
  assert not capsys.readouterr().out


def test_package_that_ends_the_process(path, monkeypatch, tmp_path):
  """As releases before 1.5.13 did."""
  forget_kaggle(monkeypatch)
  (tmp_path / 'kaggle').mkdir()
  (tmp_path / 'kaggle' / '__init__.py').write_text('print("no key"); exit(1)')
  monkeypatch.syspath_prepend(str(tmp_path))
  with pytest.raises(UserError, match='Kaggle requires credentials'):
    fetch(path)


def test_no_credentials_for_help(server, path, monkeypatch):
  """With such an argument, the package does without credentials, and says nothing."""
  monkeypatch.delenv('KAGGLE_KEY')
  monkeypatch.setattr(sys, 'argv', ['program', '-v'])
  with pytest.raises(UserError, match='Kaggle requires credentials'):
    fetch(path)


def test_config_dir_that_cannot_be(server, path, monkeypatch, tmp_path):
  (tmp_path / 'file').write_text('')
  monkeypatch.setenv('KAGGLE_CONFIG_DIR', str(tmp_path / 'file' / 'below'))
  with pytest.raises(UserError, match='Not a directory: set KAGGLE_CONFIG_DIR to a writable'):
    fetch(path)


def test_credentials_from_the_file(server, path, monkeypatch, tmp_path, capsys, log):
  monkeypatch.delenv('KAGGLE_USERNAME')
  monkeypatch.delenv('KAGGLE_KEY')
  (tmp_path / 'config').mkdir()
  file = tmp_path / 'config' / 'kaggle.json'
  file.write_text(json.dumps({'username': 'user', 'key': KEY}))
  file.chmod(0o644)  # The package prints a warning about this.
  fetch(path)
  assert content(path) == {'name.zip': BODY}
  assert not capsys.readouterr().out
  assert re.search('kaggle: Warning: .* readable by other users .*chmod 600', log.text)


def test_proxy_of_the_config(server, path, monkeypatch):
  monkeypatch.setenv('KAGGLE_PROXY', server.endpoint)
  monkeypatch.setenv('KAGGLE_API_ENDPOINT', 'https://kaggle.invalid')
  monkeypatch.delenv('no_proxy')
  with pytest.raises(UserError, match='Tunnel connection failed: 501'):  # It is no proxy.
    fetch(path)


@pytest.mark.parametrize('endpoint', ['http://kaggle.invalid', 'http://localhost.kaggle.invalid'])
def test_without_tls_nothing_is_sent(server, path, monkeypatch, endpoint):
  monkeypatch.setenv('KAGGLE_PROXY', server.endpoint)  # Which would hear of it.
  monkeypatch.setenv('KAGGLE_API_ENDPOINT', endpoint)
  monkeypatch.delenv('no_proxy')
  with pytest.raises(UserError, match='must use TLS: {}: check'.format(endpoint)):
    fetch(path)
  assert not server.api_requests and not server.ranges and not content(path)


def test_sent_on_to_an_address_without_tls(server, path, monkeypatch):
  def send_on(handler):
    handler.send_response(302)
    handler.send_header('Location', '//kaggle.invalid/storage?' + SIGNATURE)
    handler.send_header('Content-Length', '0')
    handler.end_headers()

  server.api = send_on
  with pytest.raises(UserError, match='must use TLS: http://kaggle.invalid: ') as caught:
    fetch(path)
  assert SIGNATURE not in str(caught.value) and not content(path)


def test_no_secret_is_told(server, path, log, capsys):
  server.cuts = [10] * 9
  with pytest.raises(UserError) as caught:
    fetch(path)
  own = ''.join(record.getMessage() for record in log.records if record.name == 'estimator_train')
  told = [str(caught.value), own, log.text.replace(SIGNATURE, ''), *capsys.readouterr()]
  encoded = base64.b64encode(b'user:' + KEY.encode()).decode()
  assert not [text for text in told if KEY in text or encoded in text or SIGNATURE in text]


def test_no_address_is_told_when_the_storage_is_gone(server, path):
  def storage_without_server(handler):
    handler.send_response(302)
    handler.send_header('Location', 'http://localhost:1/storage?' + SIGNATURE)
    handler.end_headers()

  server.api = storage_without_server
  with pytest.raises(UserError, match='Connection refused') as caught:
    fetch(path)
  assert SIGNATURE not in str(caught.value)


def test_disk_too_small(server, path, monkeypatch):
  usage = shutil.disk_usage('/')
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage._replace(free=4000000))
  write_part(path, BODY[:HALF])
  with pytest.raises(UserError) as caught:
    fetch(path, 4000000 + HALF + 1)
  assert str(caught.value) == (
      'the disk is too small: {} has 4,000,000 bytes free, 4,000,001 are required: free some '
      'space, or choose a --data_dir on a larger disk'.format(path.parent))
  assert not server.api_requests
  assert content(path) == {'name.zip.part': BODY[:HALF]}
  fetch(path, 4000000 + HALF)
  assert content(path) == {'name.zip': BODY}


def test_archive_is_for_unpack_to_check(server, path, tmp_path):
  fetch(path)
  with pytest.raises(UserError, match='damaged, or not a zip file'):
    unpack.unpack_zip(str(path), str(tmp_path))

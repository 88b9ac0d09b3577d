"""Kaggle's key stays with Kaggle, and nothing is taken from who only claims to be the publisher."""

import base64
import http.server
import shutil
import ssl
import subprocess
import threading
import traceback

import pytest
from test_kaggle_archive import KEY, SIGNATURE, forget_kaggle, kaggle_server

from estimator_train.datasets import download, kaggle_archive, oct2017
from estimator_train.datasets.description import DataFile
from estimator_train.errors import UserError

DEADLINE_SECS = 60
# As Kaggle's package reads the key, as it travels, and what lets anyone download.
SECRETS = (KEY, base64.b64encode(b'user:' + KEY.encode()).decode(), SIGNATURE)


def files_below(folder):
  return [path for path in folder.rglob('*') if path.is_file()]


@pytest.mark.parametrize('fails', [
    lambda server: setattr(server, 'cuts', [10] * 9),
    lambda server: setattr(server, 'api_status', 401),
    lambda server: setattr(server, 'storage_status', 503),
    lambda server: setattr(server, 'headers', {'Content-Length': None}),
    lambda server: server.http.socket.close(),
], ids=['cut', 'wrong key', 'storage fails', 'no length', 'nobody listens'])
@pytest.mark.parametrize('in_file', [False, True], ids=['variables', 'kaggle.json'])
def test_a_failing_download_never_prints_the_key(run_program, monkeypatch, tmp_path, fails,
                                                 in_file):
  config, data = tmp_path / 'config', tmp_path / 'data'
  usage = shutil.disk_usage('/')
  monkeypatch.setattr(shutil, 'disk_usage',
                      lambda folder: usage._replace(free=10 ** 12))
  with kaggle_server(monkeypatch, config) as server:
    if in_file:
      config.mkdir()
      (config / 'kaggle.json').write_text('{{"username": "user", "key": "{}"}}'.format(KEY))
      (config / 'kaggle.json').chmod(0o644)  # Kaggle's package says something about this.
      monkeypatch.delenv('KAGGLE_USERNAME')
      monkeypatch.delenv('KAGGLE_KEY')
    if server.http.socket.fileno() >= 0:
      fails(server)
    done = run_program('--mode=download', '--dataset=oct2017', '--data_dir', data, '--verbosity=1')
    assert done.code == 2 and 'Traceback' not in done.err
    forget_kaggle(monkeypatch)
    with pytest.raises(UserError) as caught:
      oct2017.download_images(str(data))
  # Of causes, which nobody is shown, the key alone: addresses in them are of this request.
  causes = ''.join(traceback.format_exception(caught.type, caught.value, caught.tb))
  texts = [done.out, done.err, str(caught.value)] + [
      path.read_bytes().decode('latin-1') for path in files_below(data)]
  assert not [text for text in texts if any(secret in text for secret in SECRETS)]
  assert not [secret for secret in SECRETS[:2] if secret in causes]


@pytest.fixture
def impostor(tmp_path, monkeypatch):
  """The address of a server whose certificate nobody vouches for, and what it was asked."""
  monkeypatch.setenv('no_proxy', '*')
  key, certificate = str(tmp_path / 'key.pem'), str(tmp_path / 'certificate.pem')
  subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-subj',
                  '/CN=localhost', '-keyout', key, '-out', certificate], check=True,
                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=DEADLINE_SECS)
  asked = []

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      asked.append((self.path, self.headers.get('Authorization')))
      self.send_response(200)
      self.send_header('Content-Length', '4')
      self.end_headers()
      self.wfile.write(b'evil')

    def log_message(self, *unused_arguments):
      pass

  class Server(http.server.HTTPServer):
    def handle_error(self, *unused_arguments):
      pass

  with Server(('127.0.0.1', 0), Handler) as server:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.01})
    thread.start()
    yield 'https://localhost:{}'.format(server.server_port), asked
    server.shutdown()
    thread.join(DEADLINE_SECS)


def test_published_files_are_not_taken_from_an_impostor(impostor, tmp_path):
  address, asked = impostor
  file = DataFile('name', 4, 'f' * 32, (address + '/name',))
  with pytest.raises(UserError, match='certificate verify failed'):
    download.download_files([file], str(tmp_path / 'data'))
  assert not asked


@pytest.mark.parametrize('variable', ['CURL_CA_BUNDLE', 'REQUESTS_CA_BUNDLE'])
def test_kaggles_key_is_not_sent_to_an_impostor(impostor, monkeypatch, tmp_path, variable):
  """Not even with an empty variable, by which requests up to 2.27 verifies nothing."""
  address, asked = impostor
  forget_kaggle(monkeypatch)
  for name in ('CURL_CA_BUNDLE', 'REQUESTS_CA_BUNDLE'):
    monkeypatch.delenv(name, raising=False)
  for name, value in (('KAGGLE_API_ENDPOINT', address), ('KAGGLE_CONFIG_DIR', str(tmp_path)),
                      ('KAGGLE_USERNAME', 'user'), ('KAGGLE_KEY', KEY), (variable, '')):
    monkeypatch.setenv(name, value)
  with pytest.raises(UserError, match='SSLError|certificate verify failed|CERTIFICATE_VERIFY'):
    kaggle_archive.fetch_archive('owner/name', str(tmp_path / 'name.zip'), 1)
  assert not asked and not (tmp_path / 'name.zip').exists()

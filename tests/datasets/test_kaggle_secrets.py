"""Kaggle's key stays with Kaggle, and nothing is taken from who only claims to be the publisher."""

import base64
import shutil
import ssl
import subprocess
import traceback

import file_server
import pytest
from file_server import API_PATH, DEADLINE_SECS, KEY, SIGNATURE, STORAGE_PATH, ranged, whole

from estimator_train.datasets import download, kaggle_archive, oct2017
from estimator_train.datasets.description import DataFile
from estimator_train.errors import UserError

API = API_PATH + oct2017.KAGGLE_DATASET
# As Kaggle's package reads the key, as it travels, and what lets anyone download.
SECRETS = (KEY, base64.b64encode(b'user:' + KEY.encode()).decode(), SIGNATURE)


@pytest.mark.parametrize('answers', [
    {STORAGE_PATH: ranged(cut_after=10)}, {API: whole(code=401)}, {STORAGE_PATH: whole(code=503)},
    {STORAGE_PATH: whole(Content_Length=None)}, None,
], ids=['cut', 'wrong key', 'storage fails', 'no length', 'nobody listens'])
@pytest.mark.parametrize('in_file', [False, True], ids=['variables', 'kaggle.json'])
def test_a_failing_download_never_prints_the_key(run_program, monkeypatch, tmp_path, answers,
                                                 in_file):
  config, data = tmp_path / 'config', tmp_path / 'data'
  usage = shutil.disk_usage('/')
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage._replace(free=10 ** 12))
  with file_server.kaggle(monkeypatch, config, oct2017.KAGGLE_DATASET) as server:
    if in_file:
      config.mkdir()
      (config / 'kaggle.json').write_text('{{"username": "user", "key": "{}"}}'.format(KEY))
      (config / 'kaggle.json').chmod(0o644)  # Kaggle's package says something about this.
      monkeypatch.delenv('KAGGLE_USERNAME')
      monkeypatch.delenv('KAGGLE_KEY')
    if answers is None:
      server.http.socket.close()
    else:
      server.answers.update({path: [answer] for path, answer in answers.items()})
    done = run_program('--mode=download', '--dataset=oct2017', '--data_dir', data, '--verbosity=1')
    assert done.code == 2 and 'Traceback' not in done.err
    file_server.forget_kaggle(monkeypatch)
    with pytest.raises(UserError) as caught:
      oct2017.download_images(str(data))
  # Of causes, which nobody is shown, the key alone: addresses in them are of this request.
  causes = ''.join(traceback.format_exception(caught.type, caught.value, caught.tb))
  texts = [done.out, done.err, str(caught.value)] + [
      path.read_bytes().decode('latin-1') for path in data.rglob('*') if path.is_file()]
  assert not [text for text in texts if any(secret in text for secret in SECRETS)]
  assert not [secret for secret in SECRETS[:2] if secret in causes]


@pytest.fixture
def impostor(tmp_path, monkeypatch):
  """A server whose certificate nobody vouches for."""
  key, certificate = str(tmp_path / 'key.pem'), str(tmp_path / 'certificate.pem')
  subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-subj',
                  '/CN=localhost', '-keyout', key, '-out', certificate], check=True,
                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=DEADLINE_SECS)
  with file_server.running(monkeypatch) as server:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    server.http.handle_error = lambda *unused_arguments: None
    server.address = 'https://localhost:{}'.format(server.http.server_port)
    yield server


def test_published_files_are_not_taken_from_an_impostor(impostor, tmp_path):
  file = DataFile('name', 4, 'f' * 32, (impostor.address + '/name',))
  with pytest.raises(UserError, match='certificate verify failed'):
    download.download_files([file], str(tmp_path / 'data'))
  assert not impostor.requests


@pytest.mark.parametrize('variable', ['CURL_CA_BUNDLE', 'REQUESTS_CA_BUNDLE'])
def test_kaggles_key_is_not_sent_to_an_impostor(impostor, monkeypatch, tmp_path, variable):
  """Not even with an empty variable, by which requests up to 2.27 verifies nothing."""
  file_server.forget_kaggle(monkeypatch)
  for name in ('CURL_CA_BUNDLE', 'REQUESTS_CA_BUNDLE'):
    monkeypatch.delenv(name, raising=False)
  for name, value in (('KAGGLE_API_ENDPOINT', impostor.address), ('KAGGLE_USERNAME', 'user'),
                      ('KAGGLE_CONFIG_DIR', str(tmp_path)), ('KAGGLE_KEY', KEY), (variable, '')):
    monkeypatch.setenv(name, value)
  with pytest.raises(UserError, match='SSLError|certificate verify failed|CERTIFICATE_VERIFY'):
    kaggle_archive.fetch_archive('owner/name', str(tmp_path / 'name.zip'), 1)
  assert not impostor.requests and not (tmp_path / 'name.zip').exists()

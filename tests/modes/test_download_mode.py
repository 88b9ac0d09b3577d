"""`--mode=download`, end to end; the addresses are those of a server in this process."""

import hashlib
import http.server
import threading

import pytest

from estimator_train.datasets import fashion_mnist


@pytest.fixture
def published(fashion_mnist_dir, monkeypatch):
  """Serves the files, and has the data set come from there; yields the paths asked for."""
  asked = []

  def published_as(file):
    content = (fashion_mnist_dir / file.name).read_bytes()
    return file._replace(urls=(address + file.name,), size=len(content),
                         md5=hashlib.md5(content).hexdigest())

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      asked.append(self.path)
      self.send_response(200)
      self.end_headers()
      self.wfile.write((fashion_mnist_dir / self.path.strip('/')).read_bytes())

    def log_message(self, *arguments):
      pass

  with http.server.HTTPServer(('127.0.0.1', 0), Handler) as server:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = 'http://127.0.0.1:{}/'.format(server.server_port)
    monkeypatch.setattr(fashion_mnist, 'FILES', tuple(map(published_as, fashion_mnist.FILES)))
    yield asked
    server.shutdown()
    thread.join(10)


def test_downloads_once(run_program, published, tmp_path):
  arguments = ('--mode=download', '--dataset=fashion_mnist', '--data_dir', tmp_path / 'new')
  done = run_program(*arguments)
  assert done.code == 0, done.err
  assert [file['downloaded'] for file in done.result['files']] == [True] * 4
  assert sorted(path.name for path in (tmp_path / 'new').iterdir()) == sorted(
      file.name for file in fashion_mnist.FILES)
  assert len(published) == 4
  done = run_program(*arguments)
  assert [file['downloaded'] for file in done.result['files']] == [False] * 4
  assert len(published) == 4


def test_training_downloads_what_is_missing(run_program, published, tmp_path):
  done = run_program('--mode=train', '--dataset=fashion_mnist', '--data_dir', tmp_path / 'data',
                     '--model_dir', tmp_path / 'model', '--train_steps=1', '--batch_size=16')
  assert done.code == 0 and len(published) == 4, done.err


def test_no_network(run_program, monkeypatch, tmp_path):
  nowhere = 'http://127.0.0.1:1/'
  monkeypatch.setattr(fashion_mnist, 'FILES', tuple(
      file._replace(urls=(nowhere + file.name,)) for file in fashion_mnist.FILES))
  done = run_program('--mode=download', '--dataset=fashion_mnist', '--data_dir', tmp_path)
  assert done.code == 2 and done.out == ''
  last = done.err.splitlines()[-1]
  assert last.startswith('error: cannot download train-images-idx3-ubyte.gz: ')
  assert 'copy the file train-images-idx3-ubyte.gz' in last and str(tmp_path) in last
  assert not list(tmp_path.iterdir())


def test_nothing_to_download(run_program):
  done = run_program('--mode=download', '--dataset=fashion_mnist_sample')
  assert done.code == 0 and done.result['files'] == []

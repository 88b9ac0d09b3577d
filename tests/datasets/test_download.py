"""download.download_files with a local server that misbehaves as configured."""

import contextlib
import hashlib
import http.server
import logging
import os
import re
import resource
import socket
import socketserver
import subprocess
import sys
import threading
from typing import Callable, Dict, List, Optional, Tuple

import pytest

from estimator_train.datasets import download, transfer
from estimator_train.datasets.description import DataFile
from estimator_train.errors import UserError

DEADLINE_SECS = 30.
NAME = 'train-images.gz'
BODY = bytes(range(256)) * 1000
FLIPPED = BODY[:1000] + b'!' + BODY[1001:]
HALF = len(BODY) // 2

Answer = Callable[[http.server.BaseHTTPRequestHandler, int], None]


class Server:
  """Answers each path with its list of answers in turn, the last one again and again.

  Attributes:
    answers: what to answer, by path.
    requests: path and Range header of each request.
  """

  def __init__(self) -> None:
    self.answers: Dict[str, List[Answer]] = {}
    self.requests: List[Tuple[str, Optional[str]]] = []
    server = self

    class Handler(http.server.BaseHTTPRequestHandler):

      def do_GET(self) -> None:
        wanted = self.headers.get('Range')
        server.requests.append((self.path, wanted))
        answers = server.answers[self.path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        answer(self, int(re.match(r'bytes=(\d+)-$', wanted).group(1)) if wanted else 0)

      def log_message(self, *unused_args) -> None:
        pass

    class Threading(socketserver.ThreadingMixIn, http.server.HTTPServer):
      daemon_threads = True

    self.http = Threading(('127.0.0.1', 0), Handler)

  def file(self, *paths: str) -> DataFile:
    return data_file(*('http://127.0.0.1:{}{}'.format(self.http.server_port, path)
                       for path in paths))

  def ranges(self) -> List[Optional[str]]:
    return [wanted for _, wanted in self.requests]


@pytest.fixture
def server(monkeypatch):
  monkeypatch.setenv('no_proxy', '*')
  # A multiple of it is what is kept of a cut response with any release of urllib3.
  monkeypatch.setattr(transfer, 'CHUNK_BYTES', 10)
  result = Server()
  thread = threading.Thread(target=result.http.serve_forever, kwargs={'poll_interval': 0.01})
  thread.start()
  yield result
  result.http.shutdown()
  result.http.server_close()
  thread.join(DEADLINE_SECS)


@pytest.fixture
def log(caplog):
  caplog.set_level(logging.INFO, 'estimator_train')
  return caplog


def data_file(*urls: str) -> DataFile:
  return DataFile(NAME, len(BODY), hashlib.md5(BODY).hexdigest(), urls)


def whole(body: bytes = BODY) -> Answer:
  """A server that knows no ranges."""
  def answer(handler, start):
    del start
    _send(handler, 200, body)
  return answer


def ranged(body: bytes = BODY, cut_after: Optional[int] = None,
           content_range: str = 'bytes {}-{}/{}') -> Answer:
  """A server that knows ranges; it may close the connection after so many bytes."""
  def answer(handler, start):
    given = content_range.format(start, len(body) - 1, len(body))
    _send(handler, 206 if start else 200, body[start:], cut_after, given if start else None)
  return answer


def status(code: int) -> Answer:
  return lambda handler, start: _send(handler, code, b'a page about it')


def chunked(body: bytes) -> Answer:
  """Without a Content-Length: the end of the connection is the end of the body."""
  def answer(handler, start):
    del start
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(body)
  return answer


def held(event: threading.Event, begun: Optional[threading.Event] = None) -> Answer:
  """Sends one half, and the other half on the event."""
  def answer(handler, start):
    assert not start
    handler.send_response(200)
    handler.send_header('Content-Length', str(len(BODY)))
    handler.end_headers()
    handler.wfile.write(BODY[:HALF])
    if begun:
      begun.set()
    event.wait(DEADLINE_SECS)
    with contextlib.suppress(OSError):  # The other side may have given up by now.
      handler.wfile.write(BODY[HALF:])
  return answer


def _send(handler, code, body, cut_after=None, content_range=None):
  handler.send_response(code)
  handler.send_header('Content-Length', str(len(body)))
  if content_range:
    handler.send_header('Content-Range', content_range)
  handler.end_headers()
  handler.wfile.write(body[:cut_after])


def content(folder) -> Dict[str, bytes]:
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_plain(server, tmp_path, log):
  server.answers['/a'] = [ranged()]
  data_dir = tmp_path / 'made' / 'on the way'
  assert download.download_files([server.file('/a')], str(data_dir)) == [(NAME, len(BODY), True)]
  assert content(data_dir) == {NAME: BODY}
  assert server.requests == [('/a', None)]
  begin, *tenths, end = log.messages
  assert tenths == ['{}.part: {} %'.format(NAME, tenth * 10) for tenth in range(1, 11)]
  assert begin == 'downloading {} ({} bytes)'.format(NAME, len(BODY))
  assert re.match(r'downloaded {} \({} bytes\) in \d+\.\d s$'.format(NAME, len(BODY)), end)


def test_bar_on_a_terminal(server, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(sys.stderr, 'isatty', lambda: True, raising=False)
  server.answers['/a'] = [ranged(cut_after=HALF), ranged()]
  download.download_files([server.file('/a')], str(tmp_path))
  out, err = capsys.readouterr()
  assert not out
  assert NAME + '.part: 100%' in err and '256k/256k' in err


def test_second_call_makes_no_request(server, tmp_path):
  server.answers['/a'] = [ranged()]
  download.download_files([server.file('/a')], str(tmp_path))
  assert download.download_files([server.file('/a')], str(tmp_path)) == [(NAME, len(BODY), False)]
  assert len(server.requests) == 1


def test_cut_connection_is_resumed(server, tmp_path):
  server.answers['/a'] = [ranged(cut_after=1000), ranged(cut_after=HALF), ranged()]
  download.download_files([server.file('/a')], str(tmp_path))
  assert server.ranges() == [None, 'bytes=1000-', 'bytes={}-'.format(1000 + HALF)]
  assert content(tmp_path) == {NAME: BODY}


def test_always_cut_connection_ends(server, tmp_path):
  server.answers['/a'] = [ranged(cut_after=10)]
  message = '(interrupted after 50 of 256,000 bytes|IncompleteRead), tried 5 times'
  with pytest.raises(UserError, match=message):
    download.download_files([server.file('/a')], str(tmp_path))
  assert len(server.requests) == transfer.MAX_ATTEMPTS
  assert content(tmp_path) == {NAME + '.part': BODY[:50]}


def test_silent_server_counts_as_cut(server, tmp_path, monkeypatch):
  monkeypatch.setattr(transfer, 'TIMEOUT_SECS', 0.2)
  event = threading.Event()
  server.answers['/a'] = [held(event), ranged()]
  try:
    download.download_files([server.file('/a')], str(tmp_path))
  finally:
    event.set()
  first, second = server.ranges()
  assert first is None and re.match(r'bytes=\d+-$', second)
  assert content(tmp_path) == {NAME: BODY}


def test_server_without_ranges_starts_over(server, tmp_path):
  (tmp_path / (NAME + '.part')).write_bytes(BODY[:HALF])
  server.answers['/a'] = [whole()]
  download.download_files([server.file('/a')], str(tmp_path))
  assert server.ranges() == ['bytes={}-'.format(HALF)]
  assert content(tmp_path) == {NAME: BODY}


@pytest.mark.parametrize('size', [1, HALF, len(BODY) - 1])
def test_part_is_resumed(server, tmp_path, size):
  (tmp_path / (NAME + '.part')).write_bytes(BODY[:size])
  server.answers['/a'] = [ranged()]
  download.download_files([server.file('/a')], str(tmp_path))
  assert server.ranges() == ['bytes={}-'.format(size)]
  assert content(tmp_path) == {NAME: BODY}


def test_complete_part_needs_no_request(server, tmp_path):
  (tmp_path / (NAME + '.part')).write_bytes(BODY)
  download.download_files([server.file('/a')], str(tmp_path))
  assert not server.requests
  assert content(tmp_path) == {NAME: BODY}


@pytest.mark.parametrize('part, expected_ranges', [
    pytest.param(BODY + b'more', [None], id='longer than the file'),
    pytest.param(FLIPPED, [None], id='complete and wrong'),
    pytest.param(FLIPPED[:HALF], ['bytes={}-'.format(HALF), None], id='half and wrong'),
])
def test_useless_part_is_replaced(server, tmp_path, part, expected_ranges):
  (tmp_path / (NAME + '.part')).write_bytes(part)
  server.answers['/a'] = [ranged()]
  download.download_files([server.file('/a')], str(tmp_path))
  assert server.ranges() == expected_ranges
  assert content(tmp_path) == {NAME: BODY}


@pytest.mark.parametrize('answer', [
    pytest.param(status(416), id='416'),
    pytest.param(ranged(content_range='bytes 0-{1}/{2}'), id='other start'),
    pytest.param(ranged(content_range='bytes {}-{}/7'), id='other length'),
    pytest.param(ranged(content_range=''), id='no Content-Range'),
])
def test_wrong_answer_to_a_range_starts_over(server, tmp_path, answer):
  (tmp_path / (NAME + '.part')).write_bytes(BODY[:HALF])
  server.answers['/a'] = [answer, ranged()]
  download.download_files([server.file('/a')], str(tmp_path))
  assert server.ranges() == ['bytes={}-'.format(HALF), None]
  assert content(tmp_path) == {NAME: BODY}


@pytest.mark.parametrize('publisher, expected_requests', [
    pytest.param(ranged(FLIPPED), [('/a', None), ('/b', None)], id='flipped byte'),
    pytest.param(status(404), [('/a', None), ('/b', None)], id='404'),
    pytest.param(status(503), [('/a', None), ('/b', None)], id='503'),
    pytest.param(whole(b'log in first'), [('/a', None), ('/b', None)], id='another page'),
    pytest.param(chunked(b'log in first'),
                 [('/a', None)] + [('/a', 'bytes=12-')] * 4 + [('/b', 'bytes=12-'), ('/b', None)],
                 id='another page of unknown length'),
    pytest.param(ranged(FLIPPED, cut_after=10000),
                 [('/a', None)] + [('/a', 'bytes={}0000-'.format(i)) for i in range(1, 5)]
                 + [('/b', 'bytes=50000-'), ('/b', None)], id='flipped byte and cut'),
])
def test_fallback(server, tmp_path, publisher, expected_requests):
  server.answers.update({'/a': [publisher], '/b': [ranged()]})
  download.download_files([server.file('/a', '/b')], str(tmp_path))
  assert server.requests == expected_requests
  assert content(tmp_path) == {NAME: BODY}


def test_another_page_does_not_cost_the_part(server, tmp_path):
  (tmp_path / (NAME + '.part')).write_bytes(BODY[:HALF])
  server.answers.update({'/a': [whole(b'log in first')], '/b': [ranged()]})
  download.download_files([server.file('/a', '/b')], str(tmp_path))
  assert server.ranges() == ['bytes={}-'.format(HALF)] * 2


def test_wrong_everywhere(server, tmp_path):
  server.answers.update({'/a': [ranged(FLIPPED)], '/b': [status(404)]})
  file = server.file('/a', '/b')
  with pytest.raises(UserError) as caught:
    download.download_files([file], str(tmp_path))
  assert str(caught.value) == (
      'cannot download {name}: {a} (wrong md5 {flipped}), {b} (HTTP 404 Not Found): try again, or '
      'copy the file {name} (256000 bytes, md5 {md5}) to {folder}'.format(
          name=NAME, a=file.urls[0], b=file.urls[1], md5=file.md5, folder=tmp_path,
          flipped=hashlib.md5(FLIPPED).hexdigest()))
  assert not content(tmp_path)


def test_nobody_listens(tmp_path, monkeypatch):
  monkeypatch.setenv('no_proxy', '*')
  # Bound and not listening: refused, and nobody else gets the port meanwhile.
  with socket.socket() as bound:
    bound.bind(('127.0.0.1', 0))
    url = 'http://127.0.0.1:{}/a'.format(bound.getsockname()[1])
    with pytest.raises(UserError, match=re.escape(url) + r' \(.*[Rr]efused'):
      download.download_files([data_file(url)], str(tmp_path))
  assert not content(tmp_path)


def test_wrong_size_is_kept_and_named(server, tmp_path):
  (tmp_path / NAME).write_bytes(b'mine')
  other = server.file('/a')._replace(name='other')
  with pytest.raises(UserError, match=re.escape(str(tmp_path / NAME)) + r' \(4 bytes.*remove it'):
    download.download_files([other, server.file('/a')], str(tmp_path))
  assert content(tmp_path) == {NAME: b'mine'}
  assert not server.requests


def test_damage_is_kept_and_named(server, tmp_path):
  file = server.file('/a')
  (tmp_path / NAME).write_bytes(bytes(file.size))
  message = 'damaged: ' + re.escape(str(tmp_path / NAME)) + '.*remove it'
  with pytest.raises(UserError, match=message):
    download.download_files([file], str(tmp_path))
  assert content(tmp_path) == {NAME: bytes(file.size)}
  assert not server.requests


@pytest.mark.parametrize('data_dir', ['file', 'file/below'])
def test_data_dir_that_cannot_be(server, tmp_path, data_dir):
  (tmp_path / 'file').write_bytes(b'')
  data_dir = str(tmp_path / data_dir)
  with pytest.raises(UserError, match='{}: .*with 256,000 bytes of free'.format(data_dir)):
    download.download_files([server.file('/a')], data_dir)


def test_full_disk(server, tmp_path):
  server.answers['/a'] = [ranged()]
  # The limit on the size of a file stands for the disk: writing fails in the middle likewise.
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (HALF, hard))
  try:
    with pytest.raises(UserError, match='{}: File too large: .*256,000 bytes'.format(tmp_path)):
      download.download_files([server.file('/a')], str(tmp_path))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert len(server.requests) == 1
  download.download_files([server.file('/a')], str(tmp_path))
  assert content(tmp_path) == {NAME: BODY}


def test_interrupt_keeps_the_part(server, tmp_path, monkeypatch):
  def interrupt(*unused_args):
    raise KeyboardInterrupt
  server.answers['/a'] = [ranged()]
  with monkeypatch.context() as patch:
    patch.setattr('tqdm.tqdm.update', interrupt)
    with pytest.raises(KeyboardInterrupt):
      download.download_files([server.file('/a')], str(tmp_path))
  kept = content(tmp_path)[NAME + '.part']
  assert kept and BODY.startswith(kept)
  download.download_files([server.file('/a')], str(tmp_path))
  assert server.ranges() == [None, 'bytes={}-'.format(len(kept))]
  assert content(tmp_path) == {NAME: BODY}


FETCH = '''
import logging, sys
from estimator_train.datasets import description, download
logging.basicConfig(level=logging.INFO, format='%(message)s')
name, size, md5, url, data_dir = sys.argv[1:]
file = description.DataFile(name, int(size), md5, (url,))
print(download.download_files([file], data_dir)[0].downloaded)
'''


def test_two_processes_at_once(server, tmp_path):
  begun, go_on = threading.Event(), threading.Event()
  server.answers['/a'] = [held(go_on, begun)]
  file = server.file('/a')
  command = [sys.executable, '-c', FETCH, file.name, str(file.size), file.md5, file.urls[0],
             str(tmp_path)]
  root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
  processes = []
  # Whatever goes wrong, both end, and with them the reads from their pipes.
  timer = threading.Timer(DEADLINE_SECS, lambda: [process.kill() for process in processes])
  timer.start()
  try:
    for _ in range(2):
      processes.append(subprocess.Popen(
          command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
          universal_newlines=True))
      assert begun.wait(DEADLINE_SECS), 'the first process sent no request'
    assert processes[1].stderr.readline().startswith('waiting for another process')
    go_on.set()
    assert [process.communicate(timeout=DEADLINE_SECS)[0] for process in processes] == [
        'True\n', 'False\n']
  finally:
    timer.cancel()
    go_on.set()
    for process in processes:
      process.kill()
      process.wait(DEADLINE_SECS)
      process.stdout.close()
      process.stderr.close()
  assert len(server.requests) == 1
  assert content(tmp_path) == {NAME: BODY}


def test_many_threads_at_once_when_the_publisher_is_wrong(server, tmp_path):
  server.answers.update({'/a': [ranged(FLIPPED, cut_after=HALF)], '/b': [ranged()]})
  results = []
  threads = [
      threading.Thread(
          target=lambda: results.extend(
              download.download_files([server.file('/a', '/b')], str(tmp_path))))
      for _ in range(5)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(DEADLINE_SECS)
  assert sorted(result.downloaded for result in results) == [False] * 4 + [True]
  assert content(tmp_path) == {NAME: BODY}


def test_a_present_file_is_read_once(tmp_path, monkeypatch):
  computed, md5 = [], download._md5
  monkeypatch.setattr(download, '_md5', lambda path: computed.append(path) or md5(path))
  (tmp_path / NAME).write_bytes(BODY)
  result, = download.download_files([data_file()], str(tmp_path))
  assert result == transfer.DownloadResult(NAME, len(BODY), downloaded=False)
  assert computed == [str(tmp_path / NAME)]

"""Downloads of published files, from a local server that misbehaves as configured."""

import hashlib
import logging
import re
import resource
import socket
import sys
import threading

import file_server
import pytest
from file_server import BODY, DEADLINE_SECS, HALF, ranged, whole

from estimator_train.datasets import download, transfer
from estimator_train.datasets.description import DataFile
from estimator_train.errors import UserError

NAME = 'train-images.gz'
PART = NAME + '.part'
FLIPPED = BODY[:1000] + b'!' + BODY[1001:]
PAGE = whole(b'a page about it', code=404)
LOG_IN = whole(b'log in first')


@pytest.fixture
def server(monkeypatch):
  # A multiple of it is what is kept of a cut response with any release of urllib3.
  monkeypatch.setattr(transfer, 'CHUNK_BYTES', 10)
  with file_server.running(monkeypatch) as server:
    yield server


def fetch(server, folder, *paths):
  file = DataFile(NAME, len(BODY), hashlib.md5(BODY).hexdigest(),
                  tuple(server.address + path for path in paths or ['/a']))
  (result,) = download.download_files([file], str(folder))
  assert result[:2] == (NAME, len(BODY))
  return result.downloaded


def content(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def in_parts(*starts, path='/a'):
  return [(path, start) for start in starts]


# What is there of the file, the answers of the first server, and what is asked for.
ARRIVALS = {
    'plain': (None, [ranged()], in_parts(None)),
    'cut': (None, [ranged(cut_after=1000), ranged(cut_after=HALF), ranged()],
            in_parts(None, 1000, 1000 + HALF)),
    'no ranges': (BODY[:HALF], [whole()], in_parts(HALF)),
    'a byte': (BODY[:1], [ranged()], in_parts(1)),
    'all but a byte': (BODY[:-1], [ranged()], in_parts(len(BODY) - 1)),
    'all': (BODY, [], []),
    'longer': (BODY + b'more', [ranged()], in_parts(None)),
    'all and wrong': (FLIPPED, [ranged()], in_parts(None)),
    'half and wrong': (FLIPPED[:HALF], [ranged()], in_parts(HALF, None)),
    '416': (BODY[:HALF], [whole(code=416), ranged()], in_parts(HALF, None)),
    'other start': (BODY[:HALF], [ranged(content_range='bytes 0-{1}/{2}'), ranged()],
                    in_parts(HALF, None)),
    'other length': (BODY[:HALF], [ranged(content_range='bytes {}-{}/7'), ranged()],
                     in_parts(HALF, None)),
    'no Content-Range': (BODY[:HALF], [ranged(content_range=''), ranged()], in_parts(HALF, None)),
    # The second server has it.
    'flipped': (None, [ranged(FLIPPED)], [('/a', None), ('/b', None)]),
    '404': (None, [PAGE], [('/a', None), ('/b', None)]),
    '503': (None, [whole(code=503)], [('/a', None), ('/b', None)]),
    'other page': (None, [LOG_IN], [('/a', None), ('/b', None)]),
    'half and other page': (BODY[:HALF], [LOG_IN], [('/a', HALF), ('/b', HALF)]),
    'other page of unknown length': (
        None, [whole(b'log in first', Content_Length=None)],
        in_parts(None, 12, 12, 12, 12) + in_parts(12, None, path='/b')),
    'flipped and cut': (
        None, [ranged(FLIPPED, cut_after=10000)],
        in_parts(None, 10000, 20000, 30000, 40000) + in_parts(50000, None, path='/b')),
}


@pytest.mark.parametrize('part, answers, requests', ARRIVALS.values(), ids=list(ARRIVALS))
def test_the_file_arrives(server, tmp_path, part, answers, requests):
  server.answers.update({'/a': list(answers), '/b': [ranged()]})
  folder = tmp_path / 'made' / 'on the way'
  if part is not None:
    folder.mkdir(parents=True)
    (folder / PART).write_bytes(part)
  assert fetch(server, folder, '/a', '/b')
  assert server.requests == requests and content(folder) == {NAME: BODY}
  assert not fetch(server, folder) and len(server.requests) == len(requests)


ERRORS = {
    'always cut': ({}, [ranged(cut_after=10)],
                   '/a .(interrupted after 50 of 256,000 bytes|IncompleteRead), tried 5 times.',
                   {PART: BODY[:50]}),
    'wrong everywhere': (
        {}, [ranged(FLIPPED)], 'cannot download {name}: http.*/a .wrong md5 {flipped}., http.*/b '
        '.HTTP 404 Not Found.: try again, or copy the file {name} .256000 bytes, md5 {md5}. to '
        '{folder}$', {}),
    'wrong size': ({NAME: b'mine'}, [], '{folder}/{name} .4 bytes.*remove it', {NAME: b'mine'}),
    'damaged': ({NAME: FLIPPED}, [], 'damaged: {folder}/{name} .*remove it', {NAME: FLIPPED})}


@pytest.mark.parametrize('present, answers, message, left', ERRORS.values(), ids=list(ERRORS))
def test_what_ends_in_an_error(server, tmp_path, present, answers, message, left):
  server.answers.update({'/a': answers, '/b': [PAGE]})
  for name, data in present.items():
    (tmp_path / name).write_bytes(data)
  with pytest.raises(UserError, match=message.format(
      name=NAME, folder=tmp_path, flipped=hashlib.md5(FLIPPED).hexdigest(),
      md5=hashlib.md5(BODY).hexdigest())):
    fetch(server, tmp_path, '/a', '/b')
  assert content(tmp_path) == left
  assert bool(server.requests) == bool(answers)


def test_a_wrong_file_is_found_before_the_others_are_downloaded(server, tmp_path):
  (tmp_path / NAME).write_bytes(b'mine')
  file = DataFile(NAME, len(BODY), 'any', (server.address + '/a',))
  with pytest.raises(UserError, match='the wrong size'):
    download.download_files([file._replace(name='other'), file], str(tmp_path))
  assert content(tmp_path) == {NAME: b'mine'} and not server.requests


def test_nobody_listens(server, tmp_path):
  # Bound and not listening: refused, and nobody else gets the port meanwhile.
  with socket.socket() as bound:
    bound.bind(('127.0.0.1', 0))
    server.address = 'http://127.0.0.1:{}'.format(bound.getsockname()[1])
    with pytest.raises(UserError, match=re.escape(server.address) + r'/a \(.*[Rr]efused'):
      fetch(server, tmp_path)
  assert not content(tmp_path)


def test_progress_on_a_terminal_and_in_a_log(server, tmp_path, monkeypatch, capsys, caplog):
  caplog.set_level(logging.INFO, 'estimator_train')
  server.answers['/a'] = [ranged()]
  fetch(server, tmp_path / 'logged')
  begin, *tenths, end = caplog.messages
  assert tenths == ['{}: {} %'.format(PART, tenth * 10) for tenth in range(1, 11)]
  assert begin == 'downloading {} ({} bytes)'.format(NAME, len(BODY))
  assert re.match(r'downloaded {} \({} bytes\) in \d+\.\d s$'.format(NAME, len(BODY)), end)
  monkeypatch.setattr(sys.stderr, 'isatty', lambda: True, raising=False)
  monkeypatch.setattr(transfer, 'CHUNK_BYTES', 10000)
  server.answers['/a'] = [ranged(cut_after=HALF), ranged()]
  fetch(server, tmp_path / 'shown')
  out, err = capsys.readouterr()
  assert not out and PART + ': 100%' in err and '256k/256k' in err


def test_a_silent_server_counts_as_cut(server, tmp_path, monkeypatch):
  monkeypatch.setattr(transfer, 'TIMEOUT_SECS', 0.2)
  event = threading.Event()
  server.answers['/a'] = [ranged(before_rest=lambda: event.wait(DEADLINE_SECS)), ranged()]
  try:
    fetch(server, tmp_path)
  finally:
    event.set()
  assert [bool(start) for _, start in server.requests] == [False, True]
  assert content(tmp_path) == {NAME: BODY}


@pytest.mark.parametrize('data_dir', ['file', 'file/below'])
def test_data_dir_that_cannot_be(server, tmp_path, data_dir):
  (tmp_path / 'file').write_bytes(b'')
  with pytest.raises(UserError, match='{}: .*with 256,000 bytes of free'.format(data_dir)):
    fetch(server, tmp_path / data_dir)


def test_full_disk(server, tmp_path):
  server.answers['/a'] = [ranged()]
  # The limit on the size of a file stands for the disk: writing fails in the middle likewise.
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (HALF, hard))
  try:
    with pytest.raises(UserError, match='{}: File too large: .*256,000 bytes'.format(tmp_path)):
      fetch(server, tmp_path)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert len(server.requests) == 1 and fetch(server, tmp_path)
  assert content(tmp_path) == {NAME: BODY}


def test_interrupt_keeps_the_part(server, tmp_path, monkeypatch):
  def interrupt(*unused_args):
    raise KeyboardInterrupt

  server.answers['/a'] = [ranged()]
  with monkeypatch.context() as patch:
    patch.setattr('tqdm.tqdm.update', interrupt)
    with pytest.raises(KeyboardInterrupt):
      fetch(server, tmp_path)
  kept = content(tmp_path)[PART]
  assert kept and BODY.startswith(kept) and fetch(server, tmp_path)
  assert server.requests == [('/a', None), ('/a', len(kept))]
  assert content(tmp_path) == {NAME: BODY}


@pytest.mark.parametrize('publisher', [ranged(), ranged(FLIPPED, cut_after=10000)],
                         ids=['right', 'wrong'])
def test_many_at_once(server, tmp_path, caplog, publisher):
  """The lock is one between open files, so that threads stand for processes."""
  caplog.set_level(logging.INFO, 'estimator_train')
  waiting, handler = threading.Event(), logging.Handler()
  handler.emit = lambda record: waiting.set() if 'waiting for another process' in (
      record.getMessage()) else None
  logging.getLogger('estimator_train').addHandler(handler)

  def first(handler, start):
    assert waiting.wait(DEADLINE_SECS)
    publisher(handler, start)

  server.answers.update({'/a': [first, publisher], '/b': [ranged()]})
  results = []
  threads = [threading.Thread(target=lambda: results.append(fetch(server, tmp_path, '/a', '/b')))
             for _ in range(5)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(DEADLINE_SECS)
  assert sorted(results) == [False] * 4 + [True] and content(tmp_path) == {NAME: BODY}


def test_a_present_file_is_read_once(server, tmp_path, monkeypatch):
  computed, md5 = [], download._md5
  monkeypatch.setattr(download, '_md5', lambda path: computed.append(path) or md5(path))
  (tmp_path / NAME).write_bytes(BODY)
  assert not fetch(server, tmp_path) and computed == [str(tmp_path / NAME)]

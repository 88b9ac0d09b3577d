"""A local server that answers each path as a test says, wrongly too, and a Kaggle made of it."""

import base64
import contextlib
import http.server
import logging
import re
import socketserver
import sys
import threading
from concurrent import futures

from estimator_train.data import download

DEADLINE_SECS = 30.
BODY = bytes(range(256)) * 1000
LENGTH = len(BODY)
HALF = LENGTH // 2
KEY = 'the-secret-key'
SIGNATURE = 'X-Goog-Signature=another-secret'
API_PATH = '/api/v1/datasets/download/'
STORAGE_PATH = '/storage/archive.zip?' + SIGNATURE


class Server:
  """Answers each path with its list of answers in turn, the last one again and again.

  Attributes:
    answers: what to answer, by path: functions of a handler and the first byte asked for.
    requests: the path of each request, and the first byte asked for, or None.
  """

  def __init__(self):
    self.answers, self.requests = {}, []
    server = self

    class Handler(http.server.BaseHTTPRequestHandler):

      def do_GET(self):
        wanted = self.headers.get('Range')
        start = int(re.match(r'bytes=(\d+)-$', wanted).group(1)) if wanted else None
        server.requests.append((self.path, start))
        answers = server.answers[self.path]
        with contextlib.suppress(ConnectionError):  # The other side may be gone.
          (answers.pop(0) if len(answers) > 1 else answers[0])(self, start or 0)

      def log_message(self, *unused_args):
        pass

    class Threading(socketserver.ThreadingMixIn, http.server.HTTPServer):
      daemon_threads = True

    self.http = Threading(('127.0.0.1', 0), Handler)
    self.address = 'http://127.0.0.1:{}'.format(self.http.server_port)


@contextlib.contextmanager
def running(monkeypatch):
  """Yields a server, and leaves out proxies."""
  monkeypatch.setenv('no_proxy', '*')
  server = Server()
  thread = threading.Thread(target=server.http.serve_forever, kwargs={'poll_interval': 0.01})
  thread.start()
  try:
    yield server
  finally:
    server.http.shutdown()
    server.http.server_close()
    thread.join(DEADLINE_SECS)


def send(handler, code, body, headers):
  """Sends a response without the headers that are None."""
  handler.send_response(code)
  for name, value in headers.items():
    if value is not None:
      handler.send_header(name, value)
  handler.end_headers()
  handler.wfile.write(body)


def whole(body=BODY, code=200, length=LENGTH, content_type=None):
  """A server that knows no ranges."""
  return lambda handler, start: send(handler, code, body, {
      'Content-Length': length, 'Content-Type': content_type})


def ranged(body=BODY, cut_after=None, content_range='bytes {}-{}/{}', before_rest=None):
  """A server that knows ranges.

  Args:
    body: of the file.
    cut_after: after how many bytes it closes the connection.
    content_range: how it states the range.
    before_rest: a function to call between the first half of what is sent and the rest.
  """
  def answer(handler, start):
    if 'Authorization' in handler.headers:
      send(handler, 400, b'more than one authentication', {})
    elif start >= len(body):
      send(handler, 416, b'', {'Content-Range': 'bytes */{}'.format(len(body)),
                               'Content-Length': '0'})
    else:
      given = content_range.format(start, len(body) - 1, len(body)) if start else None
      content = body[start:][:cut_after]
      half = len(content) // 2 if before_rest else len(content)
      send(handler, 206 if start else 200, content[:half],
           {'Content-Length': str(len(body) - start), 'Content-Range': given or None})
      if before_rest:
        before_rest()
        handler.wfile.write(content[half:])

  return answer


def sign_in_and_redirect(location):
  """Kaggle's interface, which asks for a key and sends on to the storage."""
  expected = 'Basic ' + base64.b64encode(b'user:' + KEY.encode()).decode()

  def answer(handler, start):
    if handler.headers.get('Authorization') == expected:
      send(handler, 302, b'', {'Location': location, 'Content-Length': '0'})
    else:
      handler.send_error(403)

  return answer


@contextlib.contextmanager
def kaggle(monkeypatch, config_dir, dataset, body=BODY):
  """Yields a server with an archive, in an environment that leads there with a user's key."""
  forget_kaggle(monkeypatch)
  refuse = download.SecureHandler.http_open
  # Requests without TLS are refused, except to this server.
  monkeypatch.setattr(download.SecureHandler, 'http_open', lambda handler, request: None if (
      request.host.startswith(('127.0.0.1:', 'localhost:'))) else refuse(handler, request))
  with running(monkeypatch) as server:
    for name, value in (('KAGGLE_API_ENDPOINT', server.address), ('KAGGLE_KEY', KEY),
                        ('KAGGLE_CONFIG_DIR', str(config_dir)), ('KAGGLE_USERNAME', 'user')):
      monkeypatch.setenv(name, value)
    # Another host's name, so that a client must not hand on the key.
    server.answers[API_PATH + dataset] = [sign_in_and_redirect(
        'http://localhost:{}{}'.format(server.http.server_port, STORAGE_PATH))]
    server.answers[STORAGE_PATH] = [ranged(body)]
    yield server


def forget_kaggle(monkeypatch):
  """The package reads its environment when it is imported, and some of it only once."""
  for name in list(sys.modules):
    if name.split('.')[0] in ('kaggle', 'kagglesdk'):
      monkeypatch.delitem(sys.modules, name)


def once_another_waits(answer):
  """Has a server answer as soon as another caller is logged to wait for the lock."""
  is_waiting, handler = threading.Event(), logging.Handler()
  handler.emit = lambda record: is_waiting.set() if 'waiting for another process' in (
      record.getMessage()) else None
  logging.getLogger('estimator_train').addHandler(handler)  # Removed by `clean_environment`.
  return lambda *given: answer(*given) if is_waiting.wait(DEADLINE_SECS) else None


def call_at_once(count, function):
  """Returns the results of calls in several threads.

  The locks of files are between open files, so that threads stand for processes.
  """
  with futures.ThreadPoolExecutor(count) as threads:
    calls = [threads.submit(function) for _ in range(count)]
    return [call.result(DEADLINE_SECS) for call in calls]


def write_files(folder, files):
  for path, data in files.items():
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)

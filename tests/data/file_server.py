"""A local server that answers each path as a test says, wrongly too, and a Kaggle made of it."""

import base64
import contextlib
import http.server
import re
import socketserver
import sys
import threading

from estimator_train.data import download, oct2017

DEADLINE_SECS = 30.
BODY = bytes(range(256)) * 1000
HALF = len(BODY) // 2
KEY = 'the-secret-key'
SIGNATURE = 'X-Goog-Signature=another-secret'
API = '/api/v1/datasets/download/' + oct2017.KAGGLE_DATASET
STORAGE = '/storage/archive.zip?' + SIGNATURE


class Handler(http.server.BaseHTTPRequestHandler):

  def do_GET(self):
    wanted = self.headers.get('Range')
    start = int(re.match(r'bytes=(\d+)-$', wanted).group(1)) if wanted else None
    self.server.requests.append((self.path, start))
    answers = self.server.answers[self.path]
    with contextlib.suppress(ConnectionError):  # The other side may be gone.
      (answers.pop(0) if len(answers) > 1 else answers[0])(self, start or 0)

  def log_message(self, *unused_args):
    pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
  """Answers each path with its list of answers in turn, the last one again and again.

  Attributes:
    answers: what to answer, by path: functions of a handler and the first byte asked for.
    requests: the path of each request, and the first byte asked for, or None.
  """
  daemon_threads = True

  def __init__(self):
    super().__init__(('127.0.0.1', 0), Handler)
    self.answers, self.requests = {}, []
    self.address = 'http://127.0.0.1:{}'.format(self.server_port)


@contextlib.contextmanager
def running(monkeypatch):
  """Yields a server, and leaves out proxies."""
  monkeypatch.setenv('no_proxy', '*')
  with Server() as server:
    thread = threading.Thread(target=server.serve_forever, args=[.01])
    thread.start()
    try:
      yield server
    finally:
      server.shutdown()
      thread.join(DEADLINE_SECS)


def whole(body=BODY, code=200, **headers):
  """Answers the same, whatever range is asked for; by default, as a server that knows none."""
  def answer(handler, unused_start):
    handler.send_response(code)
    for name, value in dict({'content_length': len(body)}, **headers).items():
      if value is not None:
        handler.send_header(name.replace('_', '-'), str(value))
    handler.end_headers()
    handler.wfile.write(body)

  return answer


def ranged(body=BODY, cut_after=None):
  """Answers as a server that knows ranges, and closes the connection after some bytes."""
  def answer(handler, start):
    rest = body[start:]
    if 'Authorization' in handler.headers:
      response = whole(b'more than one authentication', 400)
    elif rest:
      response = whole(rest[:cut_after], 206 if start else 200, content_length=len(rest),
                       content_range='bytes {}-{}/{}'.format(start, len(body) - 1, len(body)))
    else:
      response = whole(b'', 416, content_range='bytes */{}'.format(len(body)))
    response(handler, start)

  return answer


def sign_in_and_redirect(location):
  """Answers as Kaggle's interface, which asks for a key and sends on to the storage."""
  expected = 'Basic ' + base64.b64encode(b'user:' + KEY.encode()).decode()
  return lambda handler, start: (
      whole(b'', 302, location=location) if handler.headers.get('Authorization') == expected
      else whole(b'', 403))(handler, start)


@contextlib.contextmanager
def kaggle(monkeypatch, config_dir):
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
    server.answers[API] = [sign_in_and_redirect(
        'http://localhost:{}{}'.format(server.server_port, STORAGE))]
    server.answers[STORAGE] = [ranged()]
    yield server


def forget_kaggle(monkeypatch):
  """The package reads its environment when it is imported, and some of it only once."""
  for name in list(sys.modules):
    if name.split('.')[0] in ('kaggle', 'kagglesdk'):
      monkeypatch.delitem(sys.modules, name)


def write_files(folder, files):
  for path, data in files.items():
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)

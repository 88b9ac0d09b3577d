"""The page about a run in a browser: it complains of nothing, asks nobody, and fits a phone."""

import html
import json
import os
import re
import shutil
import signal
import subprocess

import page_example
import pytest

from estimator_train.reports import page

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')
TIMEOUT_SECS = 120
PHONE_WIDTH = 360
# The browser asks for updates and the like by itself: no name is found, so that it asks nobody.
OFFLINE = ('--headless', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
           '--disable-background-networking', '--disable-component-update', '--disable-sync',
           '--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1')
# A browser's windows are wider than a phone; a frame is not.
FRAME = '''<!DOCTYPE html><title>frame</title><pre></pre>
<script>addEventListener('message', event => {
  document.querySelector('pre').textContent = event.data;
});</script>
<iframe src="page.html" width="WIDTH" height="800" style="border:0"></iframe>
'''
MEASURE = '''<script>addEventListener('load', async () => {
  const root = document.documentElement;
  const inScroller = element => element.parentElement.closest('.scroll');
  parent.postMessage(JSON.stringify({
    width: innerWidth,
    overflow: root.scrollWidth - root.clientWidth,
    beyond: [...document.body.querySelectorAll('*')].filter(element =>
      element.getBoundingClientRect().right > innerWidth + 0.5 && !inScroller(element)).map(
      element => element.outerHTML.slice(0, 80)),
    images: [...document.images].map(image => [
      image.naturalWidth, image.complete, image.getBoundingClientRect().width]),
  }), '*');
});</script></body>'''

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason='chromium is not installed')


class Visit:
  """What a browser said, and which addresses it asked for, when it opened a file (a Path)."""

  def __init__(self, path, folder, *arguments):
    net_log = folder / 'net-log.json'
    command = [CHROMIUM, *OFFLINE, '--user-data-dir={}'.format(folder / 'profile'),
               '--log-net-log={}'.format(net_log), '--enable-logging=stderr', '--dump-dom',
               '--virtual-time-budget=5000', *arguments, path.as_uri()]
    if os.getuid() == 0:
      command.insert(1, '--no-sandbox')  # It refuses to start without.
    # A session of its own, as the browser is many processes, which are to end together.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL, start_new_session=True)
    try:
      out, err = process.communicate(timeout=TIMEOUT_SECS)
    finally:
      try:
        os.killpg(process.pid, signal.SIGKILL)
      except ProcessLookupError:
        pass
    assert process.returncode == 0, err
    self.dom = out.decode('utf-8')
    self.console = [line for line in err.decode('utf-8', 'replace').splitlines()
                    if 'CONSOLE' in line]
    self.asked_for = _addresses(json.loads(net_log.read_text()))


def _addresses(net_log):
  """Returns the addresses in a log of the browser's network that a page asked for, not itself.

  Requests of a page have an origin. What is only looked up, or connected to for later use, has a
  key that names the page's.
  """
  names = net_log['constants']['logEventTypes']
  found = set()
  for event in net_log['events']:
    said = event.get('params', {})
    if event['type'] == names['URL_REQUEST_START_JOB']:
      if said.get('initiator', 'not an origin') != 'not an origin':
        found.add(said['url'])
    elif event['type'] == names['HOST_RESOLVER_MANAGER_REQUEST'] and 'file://' in said.get(
        'network_anonymization_key', ''):
      found.add(said['host'])
  return found


@pytest.fixture
def index(tmp_path):
  page_example.write(tmp_path / 'run')
  page.write_page(str(tmp_path / 'run'))
  return tmp_path / 'run' / 'report' / 'index.html'


def alone(index, folder, text):
  """Returns a copy of the page with this text, where nothing else is that it could load."""
  copy = folder / 'alone' / index.name
  copy.parent.mkdir()
  copy.write_text(text, encoding='utf-8')
  return copy


def without_policy(text):
  changed, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', '', text)
  assert count == 1
  return changed


def test_the_page_complains_of_nothing_and_asks_nobody(index, tmp_path):
  visit = Visit(alone(index, tmp_path, index.read_text(encoding='utf-8')), tmp_path)
  assert visit.console == []
  assert visit.asked_for == set()
  assert '</footer>' in visit.dom


def test_the_page_asks_nobody_where_it_could(index, tmp_path):
  text = without_policy(index.read_text(encoding='utf-8'))
  visit = Visit(alone(index, tmp_path, text), tmp_path)
  assert visit.console == [] and visit.asked_for == set()


def test_a_request_would_be_seen(index, tmp_path):
  stranger = '<img src="http://127.0.0.1:9/stranger.png">' \
             '<link rel="preconnect" href="http://127.0.0.1:10"></body>'
  text = index.read_text(encoding='utf-8').replace('</body>', stranger)
  visit = Visit(alone(index, tmp_path, without_policy(text)), tmp_path)
  assert visit.asked_for == {
      'http://127.0.0.1:9/stranger.png', 'http://127.0.0.1:9', 'http://127.0.0.1:10'}


def test_the_policy_holds(index, tmp_path):
  stranger = '<img src="http://127.0.0.1:9/stranger.png">' \
             '<script>document.body.id = 1</script></body>'
  text = index.read_text(encoding='utf-8').replace('</body>', stranger)
  visit = Visit(alone(index, tmp_path, text), tmp_path)
  assert visit.asked_for == set() and '<body id' not in visit.dom
  assert len(visit.console) == 2


@pytest.mark.parametrize('width', [PHONE_WIDTH, 1280])
def test_pictures_are_decoded_and_nothing_overflows(index, tmp_path, width):
  text = without_policy(index.read_text(encoding='utf-8')).replace('</body>', MEASURE)
  framed = alone(index, tmp_path, text)
  framed.rename(framed.parent / 'page.html')
  frame = framed.parent / 'frame.html'
  frame.write_text(FRAME.replace('WIDTH', str(width)))
  dom = Visit(frame, tmp_path, '--window-size=1400,900').dom
  measured = json.loads(html.unescape(re.search('<pre>(.*?)</pre>', dom, re.DOTALL).group(1)))
  assert measured['width'] == width
  assert measured['overflow'] == 0 and measured['beyond'] == []
  assert len(measured['images']) == 6 + len(page_example.HOSTILE)
  for natural_width, complete, shown_width in measured['images']:
    assert natural_width > 0 and complete and 0 < shown_width <= width

"""The documentation as scripts/build_docs has built it in site/."""

import re
import shutil
from html.parser import HTMLParser

import pytest
from conftest import ROOT, run_process

SITE = ROOT / 'site'
CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')
SOURCES = [ROOT / 'mkdocs.yml', *(ROOT / 'docs').glob('**/*.*')]
# `rel` of links whose target a browser loads without a click.
LOADED_RELATIONS = {'stylesheet', 'icon', 'preload', 'prefetch', 'preconnect', 'dns-prefetch',
                    'modulepreload', 'manifest'}


def is_built():
  page = SITE / 'index.html'
  return page.exists() and page.stat().st_mtime >= max(path.stat().st_mtime for path in SOURCES)


pytestmark = pytest.mark.skipif(not is_built(), reason='scripts/build_docs has not built the site '
                                'of these pages')


class LoadedUrls(HTMLParser):
  """Collects the URLs that a browser loads with a page."""

  def __init__(self, text):
    super().__init__()
    self.urls = []
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    values = dict(attributes)
    if tag == 'link' and not LOADED_RELATIONS & set(values.get('rel', '').split()):
      return
    names = ('src', 'srcset', 'data', 'poster', 'style', *(['href'] if tag == 'link' else []))
    self.urls += [values[name] for name in names if values.get(name)]


def is_of_another_host(url):
  return re.search(r'(^|[\s(\'"])(https?:)?//', url) is not None


def test_pages_load_nothing_from_other_hosts():
  pages = list(SITE.glob('**/*.html'))
  assert len(pages) > 15
  for path in pages:
    text = path.read_text(encoding='utf-8')
    urls = LoadedUrls(text).urls
    assert urls and not [url for url in urls if is_of_another_host(url)], path
    for style in re.findall(r'<style.*?</style>', text, re.DOTALL):
      assert not re.search(r'(@import|url\()[\s\'"]*(https?:)?//', style), path
  for path in SITE.glob('**/*.css'):
    assert not re.search(r'(@import|url\()[\s\'"]*(https?:)?//', path.read_text('utf-8')), path


def test_pages_follow_the_dark_preference():
  text = (SITE / 'index.html').read_text(encoding='utf-8')
  schemes = re.findall(r'data-md-color-media="\(prefers-color-scheme: (\w+)\)" '
                       r'data-md-color-scheme="(\w+)"', text)
  assert schemes == [('light', 'default'), ('dark', 'slate')]


@pytest.mark.skipif(CHROMIUM is None, reason='chromium is not installed')
def test_the_search_works_in_files(tmp_path):
  page = (SITE / 'index.html').as_uri() + '?q=local_workers'
  dom = run_process(
      CHROMIUM, '--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
      '--no-first-run', '--disable-background-networking', '--disable-component-update',
      '--disable-sync', '--host-resolver-rules=MAP * ~NOTFOUND', '--dump-dom',
      '--user-data-dir={}/profile'.format(tmp_path), '--virtual-time-budget=8000', page,
      timeout=120).stdout
  results = re.findall(r'<a href="([^"]*)" class="md-search-result__link"', dom)
  assert any('reference/flags.html' in url for url in results), results

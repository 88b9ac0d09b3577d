"""The page about a run: what is on it, what is left out, and names that would break it."""

import base64
import io
import logging
import re
import subprocess
import sys
from html.parser import HTMLParser

import page_example
import pytest
from conftest import ROOT
from PIL import Image

from estimator_train import reports
from estimator_train.reports import (
  chart_rendering,
  class_selection,
  number_format,
  page,
  page_data,
  scaling_chart,
)
from estimator_train.settings import groups

PICTURES = {'step-time.png', 'step-histogram.png', 'loss.png', 'accuracy.png',
            'confusion-matrix.png', 'scaling.png'}
SECTIONS = {'verdict', 'steps', 'curves', 'classes', 'samples', 'scaling', 'ledger', 'flags'}
# Without a file, these pictures and sections are missing.
NEEDS = {
    'throughput.json': (set(), set()),  # The benchmark of the input has a verdict of its own.
    'evaluation.json': ({'confusion-matrix.png'}, {'classes'}),
    'report/steps.json': ({'step-time.png', 'step-histogram.png'}, set()),
    'report/curves.json': ({'loss.png', 'accuracy.png'}, {'curves'}),
    'report/samples.json': (set(), {'samples'}),
    'scaling.json': ({'scaling.png'}, {'scaling'}),
    'ledger.json': (set(), {'ledger'}),
    'flags.txt': (set(), {'flags'}),
    'input_benchmark.json': (set(), set()),
}
ELEMENTS = {'html', 'head', 'meta', 'link', 'title', 'style', 'body', 'header', 'main', 'footer',
            'section', 'figure', 'img', 'figcaption', 'div', 'span', 'p', 'h1', 'h2', 'h3', 'b',
            'br', 'small', 'code', 'ul', 'li', 'dl', 'dt', 'dd', 'table', 'thead', 'tbody', 'tr',
            'th', 'td'}


class Page(HTMLParser):
  """What a browser would find: the elements with their attributes, and the text."""

  def __init__(self, path):
    super().__init__()
    self.elements, self.text, self.style, self._open = [], '', '', []
    with open(path, encoding='utf-8') as file:
      self.source = file.read()
    self.feed(self.source)
    self.close()
    assert not self._open, 'elements that are not closed'

  def handle_starttag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))
    self.text += ' '  # Cells of a table follow each other without a blank.
    if tag not in ('meta', 'link', 'img', 'br'):
      self._open.append(tag)

  def handle_endtag(self, tag):
    assert self._open.pop() == tag

  def handle_data(self, data):
    if self._open[-1:] == ['style']:
      self.style += data
    else:
      self.text += data

  def all(self, tag):
    return [attributes for name, attributes in self.elements if name == tag]

  @property
  def sections(self):
    return {section['id'] for section in self.all('section')}


def write(model_dir):
  path = page.write_page(str(model_dir))
  assert path == str(model_dir / 'report' / 'index.html')
  return Page(path)


def pictures(model_dir):
  return {path.name for path in (model_dir / 'report').glob('*.png')
          if not path.name.startswith('sample-')}


def test_everything_is_on_the_page(tmp_path):
  page_example.write(tmp_path)
  found = write(tmp_path)
  assert found.sections == SECTIONS
  assert pictures(tmp_path) == PICTURES
  for text in ('2,462', '± 24.6 examples/sec', '51.1\u00a0ms',
               '99 of 100 steps within 71.2\u00a0ms', '4.40\u00a0s', 'imports', '2.20\u00a0s',
               '84.70\u00a0%',
               '± 1.14 percentage points', '1.15.0',
               'compute-bound', 'waiting for input 8.0\u00a0%', 'nothing in the input <helps>',
               'The last quarter of the steps took 2.1\u00a0% less time than the first quarter.',
               'Pauses for checkpoint: 2, 1.50\u00a0s in total.', 'step 16 (900\u00a0ms)',
               '1 of 4 points are above the top of the chart, up to 900\u00a0ms',
               'exit code 2: <no> batch', '3, 3 failed', 'no GPU & no time', 'a note & more',
               '--train_pattern=<b>/*.jpeg & "more"=x', 'Not set: --labels.',
               'mirrored', '/cpu:0, /cpu:1', '128\u00a0examples, 64 per replica'):
    assert text in re.sub(r'[ \n]+', ' ', found.text), text


@pytest.mark.parametrize('missing', sorted(NEEDS))
def test_a_missing_file_leaves_its_part_out(tmp_path, missing):
  page_example.write(tmp_path)
  (tmp_path / missing).unlink()
  found = write(tmp_path)
  without_pictures, without_sections = NEEDS[missing]
  assert pictures(tmp_path) == PICTURES - without_pictures
  assert found.sections == SECTIONS - without_sections
  assert ('2,462' in found.text) == (missing != 'throughput.json')
  assert ('84.70' in found.text) == (missing != 'evaluation.json')
  assert ('72,985' in found.text) == (missing != 'input_benchmark.json')


def test_an_empty_folder_has_a_page_too(tmp_path):
  found = write(tmp_path / 'nothing')
  assert found.sections == set() and found.all('img') == []
  assert found.all('h1')


@pytest.mark.parametrize('parts, start', [
    ({'import': 2., 'session': .5, 'first_step': .5}, 'the start of the process'),
    ({'session': .5, 'first_step': .5}, 'the complete graph')])
def test_the_start_of_the_time_to_the_first_step(tmp_path, parts, start):
  throughput = dict(page_example.example()['throughput.json'], first_step_parts_secs=parts)
  page_example.write(tmp_path, {'throughput.json': throughput})
  assert 'from {} to the end of the first step'.format(start) in write(tmp_path).text


def test_figures_of_an_earlier_release_will_do(tmp_path):
  contents = page_example.example()
  for key in ('shares', 'verdict', 'input_wait_secs', 'first_step_parts_secs', 'drift'):
    del contents['throughput.json'][key]
  contents['throughput.json'].update(standard_error_secs=None, steady_state=False, outliers=[])
  page_example.write(tmp_path, {'throughput.json': contents['throughput.json']})
  found = write(tmp_path)
  assert found.sections == {'steps', 'flags'}
  assert 'no steady state' in found.text and '±' not in found.text


def test_the_standard_error_is_named_without_a_steady_state(tmp_path):
  throughput = dict(page_example.example()['throughput.json'], steady_state=False)
  page_example.write(tmp_path, {'throughput.json': throughput})
  text = write(tmp_path).text
  assert '± 24.6 examples/sec' in text
  assert '± standard error; no steady state: the run is not longer than its warm-up' in text


def test_hostile_names_are_text(tmp_path):
  page_example.write(tmp_path)
  found = write(tmp_path)
  assert {tag for tag, _ in found.elements} <= ELEMENTS
  for tag, attributes in found.elements:
    assert not [name for name in attributes if name.startswith('on')], tag
  text = re.sub(r'\s+', ' ', found.text)
  for label in page_example.HOSTILE:
    shown = ' '.join(label.encode('utf-8', 'backslashreplace').decode().split())
    assert text.count(shown) >= 2, label
  assert found.text.count('{{ 7 * 7 }}') >= 2


def test_pictures_are_within_the_page_and_described(tmp_path):
  page_example.write(tmp_path)
  images = write(tmp_path).all('img')
  assert len(images) == len(PICTURES) + len(page_example.HOSTILE)
  for image in images:
    kind, data = image['src'].split(',')
    assert kind == 'data:image/png;base64'
    with Image.open(io.BytesIO(base64.b64decode(data))) as decoded:
      decoded.load()
    # As in the picture, so that nothing moves or is distorted when it appears.
    assert int(image['width']) / int(image['height']) == pytest.approx(
        decoded.width / decoded.height, rel=0.01)
    assert len(image['alt']) > 15
  assert len({image['alt'] for image in images}) == len(images)
  files = {(tmp_path / 'report' / name).read_bytes() for name in PICTURES}
  assert {base64.b64decode(image['src'].split(',')[1]) for image in images} >= files


def test_pictures_tell_their_gist(tmp_path):
  page_example.write(tmp_path)
  alts = ' '.join(image['alt'] for image in write(tmp_path).all('img'))
  for gist in ('median 51.5\u00a0ms, maximum 900\u00a0ms', 'Histogram of the times of 8 steps',
               'loss: in training, 2.30 at step 1 to 0.500 at step 469; in evaluation, 0.443',
               'weak scaling on real input from 1,000\u00a0examples/sec on 1 to '
               '2,000\u00a0examples/sec on 4', 'logical CPU devices, which share the same cores',
               'Confusion matrix of 11 classes'):
    assert gist in alts, gist


def test_nothing_is_loaded_from_elsewhere(tmp_path):
  page_example.write(tmp_path)
  found = write(tmp_path)
  for tag, attributes in found.elements:
    for name in ('src', 'href', 'srcset', 'action', 'data', 'background', 'poster'):
      assert attributes.get(name, 'data:').startswith('data:'), (tag, name)
    assert 'url(' not in attributes.get('style', '')
  assert 'url(' not in found.style and '@import' not in found.style
  policy, = [meta['content'] for meta in found.all('meta')
             if meta.get('http-equiv') == 'Content-Security-Policy']
  assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
  assert found.all('html') == [{'lang': 'en'}]
  assert 'viewport' in [meta.get('name') for meta in found.all('meta')]


def test_a_second_page_replaces_the_first(tmp_path):
  page_example.write(tmp_path)
  first = write(tmp_path)
  assert write(tmp_path).source == first.source  # And so are the pictures in it.
  (tmp_path / 'scaling.json').unlink()
  (tmp_path / 'evaluation.json').unlink()
  (tmp_path / 'report' / 'mine.png').touch()
  assert write(tmp_path).sections == SECTIONS - {'scaling', 'classes'}
  assert pictures(tmp_path) == PICTURES - {'scaling.png', 'confusion-matrix.png'} | {'mine.png'}
  assert not list(tmp_path.rglob('*.part'))


def test_a_page_that_fails_leaves_the_last_one(tmp_path, monkeypatch):
  page_example.write(tmp_path)
  first = write(tmp_path).source
  (tmp_path / 'flags.txt').write_text('--mode=other\n')
  monkeypatch.setattr(page.os, 'replace', lambda *_: (_ for _ in ()).throw(OSError(28, 'no space')))
  with pytest.raises(OSError, match='no space'):
    page.write_page(str(tmp_path))
  assert (tmp_path / 'report' / 'index.html').read_text(encoding='utf-8') == first
  assert not list(tmp_path.rglob('*.part'))


@pytest.mark.parametrize('content', ['{"examples_per_sec": ', '[]', '\udcff'])
def test_a_broken_file_is_left_out_and_named(tmp_path, caplog, content):
  page_example.write(tmp_path)
  (tmp_path / 'throughput.json').write_bytes(content.encode('utf-8', 'surrogateescape'))
  assert '2,462' not in write(tmp_path).text
  (message,) = caplog.messages
  assert message.startswith('{} cannot be used ('.format(tmp_path / 'throughput.json'))
  assert message.endswith('): the report page omits it')


@pytest.mark.page
def test_flags_that_are_not_utf_8_are_left_out_and_named(tmp_path, caplog):
  page_example.write(tmp_path)
  (tmp_path / 'flags.txt').write_bytes(b'--mode=train\n--labels=caf\xe9\n')
  path = page.write_page_of_finished_run(str(tmp_path), groups.Reporting())
  assert Page(path).sections == SECTIONS - {'flags'}
  message, = caplog.messages
  assert message.startswith('{} cannot be used ('.format(tmp_path / 'flags.txt'))


@pytest.mark.parametrize('name', ['../secret.png', '/etc/hostname', 'absent.png', 'broken.png', '',
                                  None, 'nul\0.png', 'x' * 300])
def test_an_image_that_is_none_is_left_out(tmp_path, name):
  page_example.write(tmp_path, {'report/samples.json': {'samples': [
      {'label': 'cat', 'predicted': 'cat', 'probability': 0.5, 'image': name}]}})
  (tmp_path / 'secret.png').write_bytes(page_example.png(8, 8))
  (tmp_path / 'report' / 'broken.png').write_bytes(page_example.png(8, 8)[:20])
  found = write(tmp_path)
  assert found.all('img') == []
  assert '✓ cat' in found.text


@pytest.mark.parametrize('package', ['matplotlib', 'jinja2'])
def test_without_its_packages_there_is_one_line(tmp_path, caplog, monkeypatch, package):
  for name in [name for name in sys.modules if name.split('.')[0] == package]:
    monkeypatch.setitem(sys.modules, name, None)
  for name in ('page_charts', 'confusion_matrix_chart', 'scaling_chart', 'chart_rendering'):
    monkeypatch.delitem(sys.modules, 'estimator_train.reports.' + name, raising=False)
    monkeypatch.delattr(reports, name, raising=False)
  page_example.write(tmp_path)
  with caplog.at_level(logging.INFO):
    assert page.write_page(str(tmp_path)) is None
  message, = caplog.messages
  assert 'pip install estimator_train[report]' in message and package in message
  assert not (tmp_path / 'report' / 'index.html').exists()


def test_matplotlib_is_imported_only_to_draw():
  code = 'import sys; from estimator_train.reports import page; ' \
         'assert not {"matplotlib", "jinja2", "PIL"} & set(sys.modules)'
  subprocess.run([sys.executable, '-c', code], cwd=str(ROOT), check=True, timeout=60)


def test_the_users_own_style_of_matplotlib_is_left_alone(tmp_path):
  import matplotlib
  page_example.write(tmp_path)
  usual = write(tmp_path).source
  with matplotlib.rc_context({'axes.facecolor': 'red', 'font.size': 30, 'xtick.major.size': 9}):
    assert write(tmp_path).source == usual
    assert matplotlib.rcParams['font.size'] == 30


def test_of_many_classes_the_worst_are_shown(tmp_path):
  labels = ['class {}'.format(index) for index in range(1000)]
  contents = page_example.example(labels)['evaluation.json']
  contents['confusion_matrix'] = [[5 * (row == column) for column in range(1000)]
                                  for row in range(1000)]
  contents['confusion_matrix'][700][3] = 4
  page_example.write(tmp_path, {'evaluation.json': contents})
  found = write(tmp_path)
  text = re.sub(r'[ \n]+', ' ', found.text)
  assert text.count('The 30 of 1,000 classes with the most mistakes') == 2
  assert 'class 700 class 3 4 44.4\u00a0%' in text  # Of the mistakes,
  assert '700 class 700 90.0' in text and 'class 999' not in text  # and of the figures.
  assert len(found.all('tr')) == 1 + 30 + 1 + 1
  assert len(found.source) < 400000
  assert 'class 700 predicted as class 3, 4 times' in found.all('img')[0]['alt']


def test_classes_keep_their_order_and_figures():
  chosen = class_selection.select_classes(page_example.example(('a', 'b'))['evaluation.json'])
  assert [row.class_name for row in chosen.rows] == ['a', 'b'] and chosen.num_classes == 2
  assert chosen.matrix.tolist() == [[9, 0], [0, 10]]
  assert chosen.confusions == []
  assert class_selection.select_classes({}) is None
  assert class_selection.select_classes(
      {'confusion_matrix': [[1, 0], [0, 1]], 'per_class': {'a': {}}}) is None


@pytest.mark.parametrize('text, expected', [
    ('T-shirt/top', 'T-shirt/top'), ('$a$', r'\$a\$'), (' a\n b', 'a b'),
    ('x' * 40, 'x' * 17 + '…'),
    ('视网膜', 'class 1'), ('\udcff', 'class 1'), ('', 'class 1'), ('a\u202eb', 'class 1')])
def test_labels_in_pictures(text, expected):
  assert chart_rendering.format_tick_label(text, 'class 1') == expected


@pytest.mark.parametrize('value, number, secs', [
    (1842.35, '1,842', '1,842\u00a0s'), (0.0703, '0.0703', '70.3\u00a0ms'),
    (0.09101, '0.0910', '91.0\u00a0ms'), (0.000124, '0.000124', '124\u00a0µs'),
    (99.97, '100', '100\u00a0s'),
    (3, '3', '3\u00a0s'), (0, '0', '0\u00a0s'), (None, '–', '–'), (float('nan'), '–', '–')])
def test_numbers_have_as_many_digits_as_they_are_worth(value, number, secs):
  assert (number_format.format_number(value), number_format.format_secs(value)) == (number, secs)


@pytest.mark.parametrize('kind, axis', [
    ('gpu', 'number of GPUs:'), ('cpu (logical)', 'number of logical CPU devices, which share')])
def test_devices_are_named(tmp_path, kind, axis):
  page_example.write(tmp_path, {
      'scaling.json': page_example.example(device_kind=kind)['scaling.json']})
  assert axis in write(tmp_path).all('img')[0]['alt']


def test_sweep_over_workers(tmp_path):
  sweep = dict(page_example.example()['scaling.json'], scale_over='workers', device_kind='cpu',
               cores_per_worker=1)
  for row in sweep['table']:
    row['workers'] = row.pop('replicas')
  page_example.write(tmp_path, {'scaling.json': sweep})
  found = write(tmp_path)
  alts = [image['alt'] for image in found.all('img')]
  assert any('over the number of workers with 1 core(s) each: weak scaling on real input from '
             '1,000\u00a0examples/sec on 1 to 2,000\u00a0examples/sec on 4' in alt for alt in alts)
  labels = [region['aria-label'] for region in found.all('div') if 'aria-label' in region]
  assert 'Rates by the number of workers' in labels
  assert 'one worker times the number of workers' in found.text
  assert scaling_chart._x_label(sweep) == 'workers with 1 core(s) each'


def test_predictions_of_a_sweep(tmp_path):
  sweep = dict(page_example.example()['scaling.json'], predictions={
      'interval': .9, 'models': [],
      'table': [{'scaling': 'weak', 'input': 'real', 'replicas': replicas,
                 'examples_per_sec': 900. * replicas, 'low': 800. * replicas,
                 'high': 1000. * replicas} for replicas in (1, 2, 4, 8)],
      'validation': [{'scaling': 'weak', 'input': 'real', 'replicas': 4, 'measured': 2000.,
                      'predicted': 2100., 'low': 1900., 'high': 2300., 'error': .05}]})
  page_example.write(tmp_path, {'scaling.json': sweep})
  found = write(tmp_path)
  assert pictures(tmp_path) == {'scaling.png', 'scaling-prediction.png'}
  assert ('Line chart of predicted examples/sec over the number of replicas: weak scaling on real '
          'input to 7,200\u00a0examples/sec (6,400 to 8,000) on 8.') in [
              image['alt'] for image in found.all('img')]
  assert ('weak scaling, real input, 4 replicas: 2,100 examples/sec instead of 2,000, an error of '
          '5.0\u00a0%.') in found.text
  page_example.write(tmp_path, {'scaling.json': dict(sweep, predictions=None)})
  write(tmp_path)
  assert pictures(tmp_path) == {'scaling.png'}


def test_flags_are_read_as_they_were_written(tmp_path):
  (tmp_path / 'flags.txt').write_text('--a=b=c\n--empty=\n# --unset is not set\n# a remark\n')
  flags = page_data.read_page_data(str(tmp_path)).flags
  assert flags == ({'a': 'b=c', 'empty': ''}, ['unset'])

"""The page about a run: what is on it, what is left out, and names that would break it."""

import base64
import html
import io
import json
import re
import shutil
import types
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import run_process
from PIL import Image

from estimator_train.reports import (
  charts,
  evaluation,
  experiment_charts,
  page,
  page_content,
  train_batch,
)
from estimator_train.settings.flags import ReportingFlags

# The files of a run. The class metrics and the pictures are not there, as they depend on HOSTILE.
EXAMPLE = Path(__file__).with_name('example_run')
# Markup, formulas, what only some fonts and no UTF-8 has, and what is too long for any table.
HOSTILE = ('<script>alert(1)</script>', '"\'><img src=x onerror=alert(1)>', '$\\frac_1$ and \\$x',
           'new\nline', '😀', '视网膜', '{{ 7 * 7 }}', 'name_of_' * 25, '&amp;',
           'no \udcff text', '')
# The pictures and the section of each file alone.
OF_FILES = {
    'throughput.json': (set(), {'verdict', 'steps', 'run'}),
    'evaluation.json': ({'confusion-matrix.png', 'reliability.png', 'roc.png',
                         'precision-recall.png'}, {'classes', 'thresholds'}),
    'report/steps.json': ({'step-time.png', 'step-histogram.png'}, {'steps'}),
    'report/curves.json': ({'loss.png', 'accuracy.png', 'learning-rate.png'}, {'curves'}),
    'report/samples.json': (set(), {'samples', 'mistakes'}),
    'report/train_batch.png': (set(), {'train-batch'}),
    'report/outputs.json': ({'output-0-values.png', 'output-0-errors.png'}, {'outputs'}),
    'scaling.json': ({'scaling.png', 'scaling-efficiency.png'}, {'scaling'}),
    'lr_finder.json': ({'lr-finder.png'}, {'lr-finder'}),
    'ledger.json': (set(), {'ledger'}),
    'flags.txt': (set(), {'flags'}),
    'input_benchmark.json': (set(), {'verdict'}),
}
PICTURES, SECTIONS = (set.union(*parts) for parts in zip(*OF_FILES.values()))


class Page:
  """What a browser would find: the elements with their attributes, and the text."""

  def __init__(self, path):
    self.source = Path(path).read_text(encoding='utf-8')
    # XML requires that every element is closed.
    root = ElementTree.fromstring(
        re.sub(r'<((meta|link|img|br)\b[^>]*)>', r'<\1/>', self.source))
    self.elements = [(element.tag, element.attrib) for element in root.iter()]
    root.find('head').remove(root.find('head/style'))
    self.text = re.sub('[ \n]+', ' ', ' '.join(root.itertext()))

  def all(self, tag):
    return [attributes for name, attributes in self.elements if name == tag]

  @property
  def sections(self):
    return {section['id'] for section in self.all('section')}

  @property
  def alts(self):
    return ' '.join(chart['aria-label'] for chart in self.all('svg'))


def write(model_dir, contents=None):
  """Writes the page of a folder, and first its files if their contents are given."""
  (model_dir / 'report').mkdir(exist_ok=True)
  for name, content in (contents or {}).items():
    (model_dir / name).write_text(json.dumps(content))
  path = page.write_page(str(model_dir))
  assert path == str(model_dir / 'report' / 'index.html')
  return Page(path)


def part(*names, **changes):
  """Returns the contents of some files, with changes to the first."""
  contents = {name: json.loads((EXAMPLE / name).read_text()) for name in names}
  contents[names[0]].update(changes)
  return contents


def pictures(model_dir):
  return {path.name for path in (model_dir / 'report').glob('*.png')
          if not path.name.startswith(('sample-', 'mistake-', 'train_batch'))}


def sample(true, predicted, probability, pixel, **identity):
  """Returns what an evaluation keeps of an example."""
  probabilities = np.full(len(HOSTILE), (1 - probability) / (len(HOSTILE) - 1))
  probabilities[predicted] = probability
  return types.SimpleNamespace(image=np.broadcast_to(pixel, (28, 20, len(pixel))),
                               class_index=true, probabilities=probabilities, identity=identity)


def per_class(labels, matrix):
  return evaluation.compute_class_metrics(
      labels, *(counts.tolist() for counts in (np.diag(matrix), matrix.sum(1), matrix.sum(0))))


@pytest.fixture(scope='module')
def full(tmp_path_factory):
  """The folder of a run of which everything is known, and its page."""
  folder = Path(shutil.copytree(str(EXAMPLE), str(tmp_path_factory.mktemp('full') / 'run')))
  matrix = np.diag([9] * (len(HOSTILE) - 1) + [0])  # There are no examples of the last class.
  matrix[7, 6:8] = 1, 3
  metrics = per_class(HOSTILE, matrix)
  evaluation.write_samples(
      str(folder), HOSTILE, [
          *(sample(true, 0, .875, [77.], example=true) for true in range(len(HOSTILE))),
          sample(8, 6, .625, [10., 20., 300.], file='a/cat.png')],
      [sample(8, 6, .625, [10., 20., 300.], file='a/cat.png')])
  labels = .25 * np.eye(len(HOSTILE)) + .75 * np.eye(len(HOSTILE))[::-1]
  train_batch.write_train_batch(str(folder), HOSTILE, np.zeros([11, 40, 300, 3]), labels)
  return folder, write(folder, part('evaluation.json', confusion_matrix=matrix.tolist(), per_class={
      label: dict(of_class, of_a_later_release=1) for label, of_class in metrics.items()}))


def test_the_highest_accuracy_of_a_run_that_ends_with_a_lower_one():
  for accuracies, notes in (([(3, .5), (6, .9), (9, .8)], ['highest: 90.0\u00a0% at step 6']),
                            ([(3, .5), (6, .8)], []), ([], [])):
    headline, *_ = page_content.make_headlines({}, {'accuracy': .8}, {'eval_accuracy': accuracies})
    assert headline.notes[1:] == notes


def test_everything_is_on_the_page(full):
  folder, found = full
  assert found.sections == SECTIONS and pictures(folder) == PICTURES
  order = [section['id'] for section in found.all('section')]
  assert order.index('curves') < order.index('classes') < order.index('steps') < order.index('run')
  assert '<title>Training of mine:a_$model$ on &lt;b&gt;: {}</title>'.format(
      folder.name) in found.source
  assert 'Training of mine:a_$model$ on <b> {} Accuracy'.format(folder.name) in found.text
  shown, folded = re.search('<details>', found.source).start(), found.source.index('</details>')
  assert found.source.index('--train_pattern') < shown < found.source.index('--optimizer') < folded
  for text in (
      'Accuracy 84.7\u00a0% ± 1.14 percentage points', 'at step 469 Average loss 0.443 per ',
      '0.500 in training, at step 469 '
      'Throughput 2,300 examples/sec over 459 steps with their pauses, after 10 warm-up steps '
      'steady rate, without checkpoints, evaluations and traced steps: 2,462 ± 24.6 (standard '
      'error) 1,150\u00a0examples/sec per replica',
      '✗ {{ 7 * 7 }} true class: &amp; 62.5\u00a0% cat.png', 'example 10',
      'Top-5 accuracy 98.8\u00a0% Macro F1 84.1\u00a0% true class',
      'Calibration error: 6.25\u00a0%',
      'Area under the ROC curve (AUC): 0.912.', '(average precision): 0.876.',
      'The positive class is "\'><img src=x one….',
      '{{ 7 * 7 }} 90.0\u00a0% 100\u00a0% 94.7\u00a0% 9', '– – – 0', 'the speed compute-bound',
      '100\u00a0% 75.0\u00a0% 85.7\u00a0% 4', 'waiting for input 8.00\u00a0%',
      'nothing in the input <helps>', 'Time to first step 4.40',
      'from the start of the process to the end of the first step imports 2.20\u00a0s data 100',
      '1 of 4 points are above the top of the chart.', 'steady step 52.0\u00a0ms 51.1\u00a0ms',
      'The last quarter of the steps took 2.10\u00a0% less time than the first quarter. Pauses for '
      'checkpoint: 2, 1.50\u00a0s in total. Much slower than the other steps: step 16 (900',
      '3, 3 failed exit code 2: <no> batch', 'a note & more', 'no GPU & no time',
      'Finished 2026-11-26 15:04 Duration 2:02:03, 1:02:03 since step 235 Machine A processor '
      '(2 cores) Devices /cpu:0, /cpu:1 Strategy mirrored', 'TensorFlow 1.15.0',
      'batch 128\u00a0examples, 64 per replica',
      '1,234,567: 1,000,000 trainable, 234,000 frozen Size of the parameters 4.94\u00a0MB',
      '--train_pattern=<b>/*.jpeg & "more"=x', '--labels is not set',
      '3 values of 1,234 test examples, evenly spaced; R² 0.500.'):
    assert text in found.text, text
  for gist in ('median 51.5\u00a0ms, maximum 900\u00a0ms', 'Histogram of the times of 8 steps',
               'loss: training, 2.30 at step 1 to 0.500 at step 469; evaluation, 0.443',
               'weak scaling on real input from 1,000\u00a0examples/sec on 1 to '
               '2,000\u00a0examples/sec on 4', 'number of logical CPU devices, which share',
               'Line chart of the accuracy over the confidence: in 2 of 3 bins with examples, the '
               'accuracy is below the confidence; in the last of them, it is 91.8\u00a0% at a '
               'confidence of 96.2\u00a0%.', 'Confusion matrix of 11 classes',
               'the recall of "\'><img src=x one… over its false positive rate: the area under the '
               'curve is 0.912.', 'learning rate, from 0.100 at step 1 to 0.00100 at step 469.',
               'the errors of <price>: mean 0.333, mean absolute error 0.333, root mean squared '
               'error 0.577, 5 % below 0, 95 % below 0.900.',
               'values of <price>: true values from 1 to 3, predicted values from 1 to 4.'):
    assert gist in found.alts, gist


def test_each_file_alone_is_on_the_page(full, tmp_path):
  """The charts of files that are not there any more are removed, but no other files."""
  (tmp_path / 'report').mkdir()
  (tmp_path / 'report' / 'mine.png').touch()
  for name, (of_file, sections) in OF_FILES.items():
    shutil.copy(str(full[0] / name), str(tmp_path / name))
    found = write(tmp_path)
    assert (pictures(tmp_path), found.sections) == (of_file | {'mine.png'}, sections), name
    for figure, source in (('2,300', 'throughput'), ('84.7', 'evaluation'), ('72,985', 'input')):
      assert (figure in found.text) == name.startswith(source)
    (tmp_path / name).unlink()
  found = write(tmp_path)
  assert found.sections == set() and found.all('svg') == [] and found.all('h1')


def test_hostile_names_are_text(full):
  _, found = full
  assert not {tag for tag, _ in found.elements} & {'script', 'iframe', 'object', 'embed', 'form'}
  text = re.sub(r'\s+', ' ', found.text)
  for label in HOSTILE:
    shown = ' '.join(label.encode('utf-8', 'backslashreplace').decode().split())
    assert text.count(shown) >= 2, label
  for tag, attributes in found.elements:  # Nothing is run, or loaded from elsewhere.
    assert not [name for name in attributes if name.startswith('on')], tag
    for name in ('src', 'href', 'srcset', 'action', 'data', 'background', 'poster'):
      assert attributes.get(name, 'data:').startswith('data:'), (tag, name)
  assert 'url(' not in found.source and '@import' not in found.source
  policy, = [meta['content'] for meta in found.all('meta')
             if meta.get('http-equiv') == 'Content-Security-Policy']
  assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
  assert found.all('html') == [{'lang': 'en'}]
  assert 'viewport' in [meta.get('name') for meta in found.all('meta')]


def test_pictures_are_within_the_page_and_described(full):
  folder, found = full
  images = found.all('img')
  assert len(images) == len(HOSTILE) + 2  # A wrong prediction is not shown as a sample, too.
  contents = [base64.b64decode(image['src'].partition('data:image/png;base64,')[2])
              for image in images]
  *opened, batch = [Image.open(io.BytesIO(content)) for content in contents]
  # Three rows of images that are 112 by 15 pixels, with two lines of text.
  assert batch.size == (4 * 112 + 3 * 6, 3 * (15 + 36) + 2 * 6)
  assert [each.getpixel((19, 27)) for each in opened] == [(10, 20, 255), *[77] * (len(opened) - 1)]
  for image in images[:-1]:  # So that nothing moves when it appears.
    assert int(image['width']) / int(image['height']) == pytest.approx(20 / 28, rel=0.01)
  charts_on_page = found.all('svg')
  assert {chart['role'] for chart in charts_on_page} == {'img'}
  assert len({chart['aria-label'] for chart in charts_on_page}) == len(PICTURES)
  sizes = sorted((2 * int(chart['width']), 2 * int(chart['height'])) for chart in charts_on_page)
  files = [Image.open(str(folder / 'report' / name)).convert('RGB') for name in PICTURES]
  assert sorted(file.size for file in files) == sizes
  for file in files:  # The data are drawn in blue, among black and grey.
    pixels = np.asarray(file).astype(int)
    assert (pixels[..., 2] - pixels[..., 0] > 60).any()


def test_the_pointer_shows_values_and_colors_suit_the_screen(full):
  _, found = full
  tips = [html.unescape(tip) for tip in re.findall('<title>(.*?)</title>', found.source, re.DOTALL)]
  for tip in ('training: 0.800 at epoch 1', 'training: 83 at epoch 4.69',
              'training: 0.500 at epoch 4.69\nevaluation: 0.443 at epoch 4.69',
              'ROC: 100 at false positive rate (%) 35',
              'longest step: 900 at global step 16\nmean: 51 at global step 16',
              '50 to 60 ms: 6 steps', '&amp; predicted as &amp;: 9, 100\u00a0%',
              'confidence 50 to 75 %: 300 examples, mean confidence 70.0\u00a0%, accuracy 60.0',
              'loss: 1.90 at learning rate 1.00e-05\nsmoothed loss: 1.90 at learning rate 1.00e-05',
              'weak scaling, real input: 100 at logical CPU devices, which share the same cores 1'):
    assert any(tip in shown for shown in tips), tip
  for part in re.findall('<svg.*?</svg>', found.source, re.DOTALL):
    assert {'ink', 'faint'} <= set(re.findall(r'(?:fill|stroke)="var\(--(\w+)\)"', part))
    assert '#' not in re.sub('&#?[a-z0-9]+;', '', part)  # No color that is the same in the dark.


def test_figures_of_other_runs(tmp_path):
  for missing, changes, texts, absent in (
      # Of an earlier release; of a run that does not know its batch size; of a short run.
      (('shares', 'verdict', 'first_step_parts_secs', 'drift', 'outliers', 'standard_error_secs'),
       {}, ['2,300'], ['±', 'bound']),
      (('steady_examples_per_sec', 'examples_per_sec', 'examples_per_sec_per_replica'),
       {'steady_steps_per_sec': 19.2}, ['18', '19.2', 'steps/sec'], ['examples/sec']),
      (('start_step',),
       {'steady_state': False, 'drift': .5, 'first_step_parts_secs': {'first_step': .5}},
       ['2,462 ± 24.6', 'Duration 1:02:03 Machine',
        'pauses; no steady state: the run is not longer than its',
        'from the complete graph to the end of the first step', '50.0\u00a0% longer than'], []),
      (('model', 'dataset'), {'shares': {'input': None, 'compute': None, 'between': .3}},
       ['The wait for input was not observed.', 'waiting for input and computing 70.0\u00a0%'],
       ['waiting for input 8'])):
    contents = part('throughput.json', **changes)
    for name in missing:
      del contents['throughput.json'][name]
    found = write(tmp_path, contents)
    assert [text for text in texts + absent if text in found.text] == texts
  # Without classes, and with several outputs.
  found = write(tmp_path, {'evaluation.json': {
      'average_loss': .25, 'loss': .5, 'regularization_loss': .25, 'examples': 8, 'global_step': 2,
      'a_loss': .125, 'a_mae': .75, 'b_loss': .0625, 'auc': .875}})
  for text in ('Average loss 0.250 per example', 'on 8\u00a0examples at step 2',
               '0.500 with regularization', 'a metric value loss 0.125 mae 0.750',
               'b metric value loss 0.0625', 'metric value auc 0.875'):
    assert text in found.text
  # A sweep over workers.
  contents = part('scaling.json', scale_over='workers', device_kind='cpu', cores_per_worker=1)
  for row in contents['scaling.json']['table']:
    row['workers'] = row.pop('replicas')
  (tmp_path / 'flags.txt').write_text('--mode=scaling\n--model=a\n--dataset=b')
  found = write(tmp_path, contents)
  for text in ('<title>Scaling of a on b: ', '="Rates by the number of workers"',
               'over the number of workers with 1 core(s) each: weak scaling on real input from '
               '1,000\u00a0examples/sec on 1 to 2,000\u00a0examples/sec on 4',
               'one worker times the number of workers'):
    assert text in found.source


@pytest.mark.parametrize('count, expected', [
    (1234, 'Skipped images 1,234: a.png, b\\n.png and 1,232 more'),
    (2, 'Skipped images 2: a.png, b\\n.png Last')])
def test_skipped_images(tmp_path, count, expected):
  found = write(tmp_path, part('throughput.json', skipped_images={
      'count': count, 'files': ['a.png', 'b\n.png']}))
  assert expected in found.text


@pytest.mark.parametrize('flags, expected', [
    ('--model=residual_cnn\n--preprocess=unit', ['--model=residual_cnn']),
    ('--dataset=x.y:z\n--preprocess=unit', ['--dataset=x.y:z']),
    ('--preprocess=caffe', ['--preprocess=caffe']),
    ('--model=vgg16\n--weights=imagenet\n--preprocess=caffe',
     ['--model=vgg16', '--weights=imagenet']),
    ('--dataset=./x\n--train_pattern=./x/train\n--eval_pattern=./x/val', ['--dataset=./x']),
    ('--dataset=./x\n--train_pattern=./x\n--validation_fraction=0.2\n--eval_pattern=y',
     ['--dataset=./x', '--eval_pattern=y'])])
def test_values_that_the_program_has_chosen_are_no_given_flags(tmp_path, flags, expected):
  (tmp_path / 'flags.txt').write_text(flags + '\n')
  section = write(tmp_path).source.partition('Flags that differ')[2]
  assert re.findall('<code>(--.*?)</code>', section.partition('All other flags')[0]) == expected


def test_lines_end_where_they_leave_the_chart():
  (chart,) = experiment_charts.draw_lr_finder_chart(part('lr_finder.json')['lr_finder.json'])
  for color in ('sky', 'blue'):  # The last loss is 1e30.
    (line,) = [shape['line'] for shape in chart.shapes
               if shape.get('color') == color and len(shape.get('line', ())) > 2]
    heights = [y for _, y in line]
    assert heights[-1] == min(heights) > 0 and heights.count(heights[-1]) == 1
    assert line[-1][0] < 480 - 16  # Before the last learning rate.


@pytest.mark.parametrize('name, values, is_log', [
    ('train_loss', 2 * .97 ** np.arange(200), True), ('train_loss', np.linspace(2, .5, 200), False),
    ('learning_rate', .1 ** np.linspace(1, 4, 50), True),
    ('learning_rate', np.repeat([.1, .01, .001], 9), True),
    ('learning_rate', .05 * (1.0001 + np.cos(np.linspace(0, np.pi, 50))), False)])
def test_scales(name, values, is_log):
  chart = list(charts.draw_curves({name: list(enumerate(values.tolist(), 1))}))[0]
  ticks = {shape['text'] for shape in chart.shapes if 'text' in shape}
  assert ('0.01' in ticks and '0.1' in ticks) == is_log
  lines = [np.array(shape['line']) for shape in chart.shapes
           if shape.get('color') in ('sky', 'blue') and len(shape.get('line', ())) > 2]
  assert len(lines) == (2 if name == 'train_loss' else 1)


def test_smoothed_curves_follow_the_points():
  random = np.random.RandomState(0)
  steps = np.arange(1, 501)
  values = 2 * np.exp(-steps / 100) + random.normal(0, .2, 500)
  smoothed = charts._smooth(steps, values)
  assert np.abs(smoothed - 2 * np.exp(-steps / 100)).max() < .2
  assert np.abs(np.diff(smoothed)).mean() < .1 * np.abs(np.diff(values)).mean()


def test_confusion_matrices_have_a_fitting_size():
  sizes = []
  for names in (['yes', 'no'], ['a long class name', 'another long name'],
                ['class {}'.format(index) for index in range(10)],
                ['class {}'.format(index) for index in range(30)]):
    matrix = np.full([len(names), len(names)], 5)
    chart = charts.draw_confusion_matrix(evaluation.select_classes_to_show(
        {'confusion_matrix': matrix.tolist(), 'per_class': per_class(names, matrix)}))
    cells = [shape['box'] for shape in chart.shapes if 'box' in shape]
    (left, top), (right, bottom) = cells[0]
    assert right - left == pytest.approx(bottom - top, abs=1) and len(cells) == len(names) ** 2
    assert max(x for box in cells for x, _ in box) <= chart.width <= 480
    sizes.append(chart.width)
  assert sizes[0] < 200 < sizes[1] < 300 and sizes[2] > 400 < sizes[3]


def test_reliability():
  """A model whose probabilities are too high is below the diagonal; most bins are empty."""
  def draw(*bins):
    names = ('examples', 'confidence', 'accuracy')
    return list(charts.draw_reliability({'calibration_error': .25, 'calibration_bins': [
        dict(zip(names, values)) for values in bins]}))

  empty = (0, None, None)
  (chart,) = draw(empty, empty, (30, .6, .35), (10, .99, .74))
  assert 'in 2 of 2 bins with examples, the accuracy is below the confidence' in chart.description
  assert 'in each of 4 bins. Calibration error: 25.0\u00a0%.' in chart.caption
  points, = [shape['dots'] for shape in chart.shapes if 'dots' in shape and len(shape['dots']) == 2]
  diagonal = [shape['line'] for shape in chart.shapes if 'line' in shape and shape['dash']][-1]
  (left, bottom), (right, top) = diagonal
  for x, y in points:  # The y axis of pictures points downwards.
    assert y > bottom + (top - bottom) * (x - left) / (right - left)
  bars = [shape['box'] for shape in chart.shapes if 'box' in shape and shape['opacity']]
  assert len(bars) == 2
  (chart,) = draw((4, .1, .25), (0, None, None))
  assert 'in 0 of 1 bins' in chart.description
  assert draw(empty) == [] == draw() == list(charts.draw_reliability({'calibration_error': .1}))


@pytest.mark.page
def test_what_is_broken_is_left_out_and_named(full, tmp_path, caplog):
  for name, content in (('throughput.json', b'{"examples_per_sec": '), ('throughput.json', b'[]'),
                        ('throughput.json', b'\xff'), ('flags.txt', b'--labels=caf\xe9\n')):
    write(tmp_path, part('throughput.json', 'ledger.json'))
    shutil.copy(str(EXAMPLE / 'flags.txt'), str(tmp_path))
    (tmp_path / name).write_bytes(content)
    caplog.clear()
    found = Page(page.write_page_of_finished_run(str(tmp_path), ReportingFlags()))
    assert found.sections == {'ledger'} | (
        {'flags'} if name == 'throughput.json' else {'verdict', 'steps', 'run'})
    (message,) = caplog.messages
    assert message.startswith('{} cannot be used ('.format(tmp_path / name))
    assert message.endswith('): the report page omits it')
  names = ['../secret.png', '/etc/hostname', 'absent.png', 'broken.png', '', None, 'nul\0.png',
           'x' * 300]
  content = (full[0] / 'report' / 'mistake-00.png').read_bytes()
  (tmp_path / 'secret.png').write_bytes(content)
  (tmp_path / 'report' / 'broken.png').write_bytes(content[:20])
  found = write(tmp_path, {  # Keys are missing.
      'scaling.json': {'table': [{'scaling': 'weak'}]},
      'throughput.json': {'step_secs': 5, 'examples_per_sec': 'a'},
      'report/samples.json': {'samples': [{'label': 'cat', 'predicted': 'cat', 'probability': 0.5,
                                           'image': name} for name in names]}})
  assert found.sections == {'ledger', 'samples'}
  for name in ('scaling.json', 'throughput.json'):
    assert '{} cannot be used (ValueError: '.format(tmp_path / name) in caplog.text
  assert found.all('img') == [] and found.text.count('✓ cat') == len(names)


def test_of_many_classes_the_worst_and_of_many_points_some_are_shown(tmp_path):
  """The pointer shows the points that it can tell apart."""
  labels = ['class {}'.format(index) for index in range(1000)]
  matrix = 5 * np.eye(1000, dtype=int)
  matrix[700, 3] = 4
  curve = [[step, 1 / step] for step in range(1, 1001)]
  found = write(tmp_path, {
      'report/curves.json': {'train_loss': curve, 'eval_loss': curve},
      'evaluation.json': {
          'confusion_matrix': matrix.tolist(),
          'per_class': per_class(labels, matrix)}})
  assert found.text.count('The 30 of 1,000 classes with the most mistakes') == 2
  assert 'class 700 class 3 4 44.4\u00a0%' in found.text  # Of the mistakes,
  assert '700 class 700 100' in found.text and 'class 999' not in found.text  # and the figures.
  assert len(found.all('tr')) == 1 + 30 + 1 + 1
  assert len(found.source) < 200000 and found.source.count('<title>') < 250
  assert 'class 700 predicted as class 3, 4 times' in found.alts


def test_more_classes_than_a_confusion_matrix_has(tmp_path):
  """The classes with the most wrong predictions are shown; some have no examples."""
  labels = ['class {}'.format(index) for index in range(3000)]
  correct, true, predicted = (np.full(3000, count) for count in (5, 5, 5))
  true[[7, 2999]], correct[[7, 2999]], predicted[7] = 0, 0, 0
  true[1234], predicted[1300] = 9, 14
  true[2000] = correct[2000] = predicted[2000] = 100  # Many examples, but no mistakes.
  written = {'accuracy': .875, 'per_class': evaluation.compute_class_metrics(
      labels, correct.tolist(), true.tolist(), predicted.tolist())}
  confusions = [{'label': 'class 1234', 'predicted': 'class 1300', 'examples': 4}]
  for num_confusions, evaluated in ((0, dict(written, confusion_matrix=None)),
                                    (1, dict(written, confusions=confusions)),
                                    (10, dict(written, confusions=confusions * 100))):
    found = write(tmp_path, {'evaluation.json': evaluated})
    assert found.sections == {'classes'} and found.all('img') == []
    assert 'The 30 of 3,000 classes with the most mistakes' in found.text
    assert '1234 class 1234 100\u00a0% 55.6\u00a0%' in found.text
    assert 'class 2000' not in found.text and 'class 2999' not in found.text
    assert len(found.all('tr')) == 1 + 30 + (num_confusions and 1 + num_confusions)
    assert found.text.count('class 1234 class 1300 4 44.4\u00a0%') == num_confusions
    assert not (tmp_path / 'report' / 'confusion-matrix.png').exists()


CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')


@pytest.mark.skipif(CHROMIUM is None, reason='chromium is not installed')
def test_the_page_fits_in_a_browser(full, tmp_path):
  frames = tmp_path / 'frames.html'
  frames.write_text(Path(__file__).with_name('frames.html').read_text().replace(
      'srcdoc="PAGE"', 'srcdoc="{}"'.format(html.escape(full[1].source))), encoding='utf-8')
  dom = run_process(
      CHROMIUM, '--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
      '--no-first-run', '--disable-background-networking', '--disable-component-update',
      '--disable-sync', '--host-resolver-rules=MAP * ~NOTFOUND', '--dump-dom',
      '--user-data-dir={}/profile'.format(tmp_path), '--virtual-time-budget=5000',
      '--window-size=1700,900', frames.as_uri(), timeout=120).stdout
  lines = re.search('<pre>(.*?)</pre>', dom, re.DOTALL).group(1).splitlines()
  assert list(map(json.loads, lines)) == [
      {'width': width, 'scrolls': 0, 'outside': 0, 'images': len(HOSTILE) + 2,
       'textsOutsideCharts': 0} for width in (400, 1280)]

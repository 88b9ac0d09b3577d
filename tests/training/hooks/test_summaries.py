"""What TensorBoard is given, read back: by its own reader, and beside a plain computation."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import batches
from own_models import two_layers
from tensorboard.backend.event_processing import plugin_event_multiplexer
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import (
    api_pb2,
    backend_context,
    list_session_groups,
    metadata,
)

from estimator_train.datasets import registry as datasets
from estimator_train.inputs import factory as inputs
from estimator_train.inputs.batching import Shard
from estimator_train.settings import Settings

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow

FLAGS = ['--dataset=fashion_mnist_sample', '--model=own_models:two_layers', '--optimizer=sgd',
         '--learning_rate=0.05', '--batch_size=24', '--log_every_steps=2']
SCALARS = {'loss', 'accuracy', 'gradient_norm', 'examples_per_sec', 'step_secs', 'learning_rate'}


def events(folder):
  """Returns all events of a folder, in the order of its files."""
  paths = sorted(folder.glob('events.*'), key=lambda path: path.stat().st_mtime_ns)
  return [event for path in paths for event in tf.train.summary_iterator(str(path))]


def scalars(folder, tag):
  return {event.step: value.simple_value for event in events(folder)
          for value in event.summary.value if value.tag == tag}


def by_hand(model_dir):
  """Returns loss, accuracy and gradient norm of the first batch at the initial weights, and its
  images."""
  settings = Settings(mode='train', model_dir=str(model_dir), batch_size=24, train_steps=4)
  dataset = datasets.describe(settings)

  def input_fn():
    tf.set_random_seed(settings.seed)  # As Estimator does.
    return inputs.make_train_input_fn(dataset, settings, True, 24, Shard(0))()

  ((pixels, labels),), _ = batches(input_fn, 1)
  checkpoint = str(model_dir / 'model.ckpt-0')
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    model = two_layers((28, 28, 1), 10)
    outputs = model(tf.constant(pixels / np.float32(255)))
    losses = -tf.reduce_sum(labels * tf.log(outputs), -1)
    gradients = tf.gradients(tf.reduce_mean(losses), model.trainable_weights)
    model.set_weights([tf.train.load_variable(checkpoint, weight.op.name)
                       for weight in model.weights])
    loss, outputs, gradients = session.run([tf.reduce_mean(losses), outputs, gradients])
    tf.keras.backend.set_session(None)
  norm = np.sqrt(sum((gradient.astype(np.float64)**2).sum() for gradient in gradients))
  return loss, (outputs.argmax(-1) == labels.argmax(-1)).mean(), norm, (pixels, labels.argmax(-1))


@pytest.mark.parametrize('flags', [
    ['--distribution_strategy=off'], ['--num_cpu_replicas=2'],
    ['--num_cpu_replicas=3', '--distribution_strategy=central_storage'],
    ['--num_cpu_replicas=2', '--model=own_models:compiled_with_momentum'],
], ids=' '.join)
def test_values_are_of_the_global_batch(run_program, tmp_path, flags):
  assert run_program('--mode=train', '--train_steps=4', '--model_dir={}'.format(tmp_path),
                     *FLAGS, *flags).code == 0
  loss, accuracy, norm, _ = by_hand(tmp_path)
  for tag, value in (('loss', loss), ('accuracy', accuracy), ('gradient_norm', norm)):
    found = scalars(tmp_path, tag)
    assert sorted(found) == [1, 2, 4]
    assert found[1] == pytest.approx(value, rel=1e-5), tag
  assert 0 < accuracy < 1


@pytest.fixture(scope='module')
def model_dir(tmp_path_factory):
  """A run of four steps, evaluated twice, and gone on with to step seven."""
  from estimator_train import __main__ as program

  folder = tmp_path_factory.mktemp('run')
  for steps in (4, 7):
    assert program.main(FLAGS + ['--num_cpu_replicas=2', '--eval_every_steps=2', '--noreport_page',
                                 '--train_steps={}'.format(steps),
                                 '--model_dir={}'.format(folder)]) == 0
  tf.summary.FileWriterCache.clear()
  return folder


def test_training_and_evaluation_are_in_the_same_charts(model_dir):
  tags = {folder: {value.tag for event in events(model_dir / folder)
                   for value in event.summary.value if value.HasField('simple_value')}
          for folder in ('', 'eval')}
  assert tags[''] == SCALARS
  assert {'loss', 'accuracy'} <= tags['eval']
  assert sorted(scalars(model_dir / 'eval', 'accuracy')) == [2, 4, 6, 7]


def test_a_run_that_goes_on(model_dir):
  assert sorted(scalars(model_dir, 'gradient_norm')) == [1, 2, 4, 5, 6, 7]
  # TensorBoard forgets what is of these steps and was written before.
  starts = [event.step for event in events(model_dir)
            if event.session_log.status == tf.SessionLog.START]
  assert sorted(set(starts)) == [1, 5]


def test_images_are_written_once(model_dir):
  images = [(event.step, value) for event in events(model_dir)
            for value in event.summary.value if value.HasField('image')]
  _, _, _, (pixels, classes) = by_hand(model_dir)
  labels = (model_dir / 'labels.txt').read_text().splitlines()
  # Of two replicas the first has the first half of the batch, in which there are enough.
  assert [(step, value.tag) for step, value in images] == [
      (1, 'examples/{} {}'.format(number, labels[classes[number]])) for number in range(8)]
  with tf.Graph().as_default(), tf.Session() as session:
    for number, (_, value) in enumerate(images):
      shown = session.run(tf.image.decode_png(value.image.encoded_image_string))
      np.testing.assert_array_equal(shown, pixels[number])
      assert (value.image.height, value.image.width, value.image.colorspace) == (28, 28, 1)


def test_files_stay_small(model_dir):
  """The graph is there, at each start and not with each summary."""
  graphs = [event for event in events(model_dir) if event.HasField('graph_def')]
  assert 0 < len(graphs) <= 4  # Estimator's own writes an unfinished one first.
  graph = tf.GraphDef.FromString(graphs[-1].graph_def)
  assert any(node.name.endswith('dense/MatMul') for node in graph.node)
  rest = [event for event in events(model_dir) if event.HasField('summary')]
  assert sum(event.ByteSize() for event in rest if not event.summary.value[0].HasField('image')
             and not event.summary.value[0].tag.startswith('_hparams_')) < 100 * len(rest)


def test_hyperparameters_as_tensorboard_shows_them(model_dir):
  multiplexer = plugin_event_multiplexer.EventMultiplexer()
  multiplexer.AddRunsFromDirectory(str(model_dir)).Reload()
  context = backend_context.Context(base_plugin.TBContext(
      logdir=str(model_dir), multiplexer=multiplexer))
  answer = list_session_groups.Handler(context, api_pb2.ListSessionGroupsRequest(
      slice_size=9, allowed_statuses=[api_pb2.STATUS_SUCCESS])).run()
  group, = answer.session_groups
  assert group.hparams['batch_size'].number_value == 24
  assert group.hparams['optimizer'].string_value == 'sgd'
  assert group.hparams['learning_rate'].number_value == 0.05
  metrics = {(value.name.group, value.name.tag): value.value for value in group.metric_values}
  assert metrics['eval', 'accuracy'] == scalars(model_dir / 'eval', 'accuracy')[7]
  assert metrics['', 'loss'] == scalars(model_dir, 'loss')[7]


def test_failure_is_told(run_program, tmp_path):
  assert run_program('--mode=train', '--train_steps=9', '--model_dir={}'.format(tmp_path),
                     '--distribution_strategy=off', *FLAGS, '--learning_rate=1e38').code == 3
  ends = [value.metadata for event in events(tmp_path) for value in event.summary.value
          if value.tag == '_hparams_/session_end_info']
  assert len(ends) == 1
  end = metadata.parse_session_end_info_plugin_data(ends[0].plugin_data.content)
  assert end.status == api_pb2.STATUS_FAILURE


def test_frozen_features_are_no_images(run_program, tmp_path):
  assert run_program('--mode=train', '--train_steps=2', '--model_dir={}'.format(tmp_path), *FLAGS,
                     '--model=own_models:frozen_first', '--cache_features').code == 0
  assert not [value for event in events(tmp_path) for value in event.summary.value
              if value.HasField('image')]
  assert [sorted(scalars(tmp_path, tag)) for tag in ('accuracy', 'gradient_norm')] == [[1, 2]] * 2


def test_each_graph_is_written_once(model_dir):
  """Of training again when it goes on; what TensorFlow writes of a new file's graph is empty."""
  sizes = {folder: [len(event.graph_def) for event in events(model_dir / folder)
                    if event.HasField('graph_def')] for folder in ('', 'eval')}
  whole = [size for size in sizes[''] if size > 1000]
  assert len(whole) == 2 and len(sizes['']) == 3
  assert len(sizes['eval']) == 1 and 1000 < sizes['eval'][0] < whole[0]

"""What TensorBoard is given, read back: by its own reader, and beside a plain computation."""

import io
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import batches, keras_session
from own_models import two_layers
from PIL import Image
from tensorboard.backend.event_processing import plugin_event_multiplexer
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups, metadata
from training_runs import all_scalars, events, scalars

from estimator_train import __main__ as program
from estimator_train.data import Role, datasets, opening
from estimator_train.data.opening import make_source
from estimator_train.settings import Settings

FLAGS = ['--dataset=fashion_mnist_sample', '--model=own_models:two_layers', '--optimizer=sgd',
         '--learning_rate=0.05', '--batch_size=24', '--log_every_steps=2', '--noreport_page']
SCALARS = {'loss', 'accuracy', 'gradient_norm', 'examples_per_sec', 'step_secs', 'learning_rate'}


@pytest.fixture(scope='module')
def model_dir(tmp_path_factory):
  """A run of four steps, evaluated twice, and gone on with to step seven."""
  folder = tmp_path_factory.mktemp('run')
  for steps in (4, 7):
    assert program.main(FLAGS + ['--num_cpu_replicas=2', '--eval_every_steps=2',
                                 '--keep_checkpoint_max=9', '--train_steps={}'.format(steps),
                                 '--model_dir={}'.format(folder)]) == 0
  tf.summary.FileWriterCache.clear()
  return folder


@pytest.fixture(scope='module')
def first_batch(model_dir):
  """The pixels and labels of the first batch, and its scalars at the initial weights."""
  settings = Settings(mode='train', model_dir=str(model_dir), batch_size=24, train_steps=4)
  dataset = datasets.describe_data_set(settings)

  def input_fn():
    tf.set_random_seed(settings.optimizer.seed)  # As Estimator does.
    source = make_source(dataset.train, dataset.spec, Role.TRAIN)
    return opening.make_train_input_fn(source, settings, *opening.make_input_settings(
        source, settings, True, 24))()

  ((pixels, labels),), _ = batches(input_fn, 1)
  with keras_session():
    model = two_layers((28, 28, 1), 10)
    model.compile(tf.keras.optimizers.SGD(1.), 'categorical_crossentropy', ['accuracy'])
    before = [tf.train.load_variable(str(model_dir / 'model.ckpt-0'), weight.op.name)
              for weight in model.weights]
    model.set_weights(before)
    loss, accuracy = model.train_on_batch(pixels / np.float32(255), labels)
    gradient = np.concatenate([np.ravel(value - after)
                               for value, after in zip(before, model.get_weights())])
  return pixels, labels, {
      'loss': loss, 'accuracy': accuracy, 'gradient_norm': np.linalg.norm(gradient)}


@pytest.mark.parametrize('flags', [
    ['--distribution_strategy=off', '--model=own_models:compiled_with_momentum'],
    ['--num_cpu_replicas=3', '--distribution_strategy=central_storage']], ids=' '.join)
def test_values_are_of_the_global_batch(run_program, model_dir, first_batch, tmp_path, flags):
  assert run_program('--mode=train', '--train_steps=3', '--model_dir={}'.format(tmp_path),
                     *FLAGS, *flags).code == 0
  for tag, value in first_batch[2].items():
    # A short run has a point of loss and accuracy for each step.
    logged = tag == 'gradient_norm'
    for folder, steps in ((tmp_path, [1, 2, 3]),
                          (model_dir, [1, 2, 4, 5, 6, 7] if logged else list(range(1, 8)))):
      found = scalars(folder, tag)
      assert sorted(found) == steps
      assert found[1] == pytest.approx(value, rel=1e-5), tag
  assert 0 < first_batch[2]['accuracy'] < 1


def test_the_parts_of_a_run_are_in_the_same_charts(model_dir):
  assert {tag for _, tag in all_scalars(model_dir)} == SCALARS
  for tag in ('loss', 'accuracy'):
    assert sorted(scalars(model_dir / 'eval', tag)) == [2, 4, 6, 7]
  # TensorBoard forgets what is of these steps and was written before.
  starts = [event.step for event in events(model_dir)
            if event.session_log.status == tf.SessionLog.START]
  assert sorted(set(starts)) == [1, 5]
  # Each of the two event files begins with an empty graph.
  assert sum(bool(tf.GraphDef.FromString(event.graph_def).node)
             for event in events(model_dir)) == 2
  assert {path.name for path in model_dir.glob('*.meta')} == {
      'model.ckpt-{}.meta'.format(step) for step in (0, 2, 4, 6, 7)}


def test_the_first_batch_is_written_once(model_dir, first_batch):
  images = [(event.step, value) for event in events(model_dir)
            for value in event.summary.value if value.HasField('image')]
  content = (model_dir / 'report' / 'train_batch.png').read_bytes()
  assert [(step, value.tag, value.image.encoded_image_string) for step, value in images] == [
      (1, 'train_batch', content)]
  picture = np.asarray(Image.open(io.BytesIO(content)))
  assert picture.shape == (images[0][1].image.height, images[0][1].image.width, 4)
  # Of two replicas the first has the first half of the batch, in which there are enough.
  height, width = (picture.shape[0] + 6) // 3, (picture.shape[1] + 6) // 4
  for number, pixels in enumerate(first_batch[0][:12, :, :, 0]):
    top, left = number // 4 * height, number % 4 * width
    found = picture[top:top + 112, left:left + 112]
    np.testing.assert_array_equal(found[..., 0], np.kron(pixels, np.ones([4, 4])))
    assert (found[..., 3] == 255).all()
    # The class name is white, below the image.
    assert (picture[top + 112:top + height, left:left + 112, :3].min(-1) > 200).any()


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


def test_a_failure_is_recorded_and_frozen_features_are_no_images(run_program, tmp_path):
  done = run_program('--mode=train', '--train_steps=9', '--model_dir={}'.format(tmp_path), *FLAGS,
                     '--model=own_models:frozen_first', '--cache_features', '--learning_rate=1e38')
  assert done.code == 3
  assert re.match(
      r'error: the loss is nan at step 2; the last finite losses: [\d.]+ at step 1; learning rate '
      r'1e\+38; the last good checkpoint is .*/model.ckpt-0$', done.err.splitlines()[-1])
  values = [value for event in events(tmp_path) for value in event.summary.value]
  end, = [value.metadata.plugin_data.content for value in values
          if value.tag == '_hparams_/session_end_info']
  assert metadata.parse_session_end_info_plugin_data(end).status == api_pb2.STATUS_FAILURE
  assert not any(value.HasField('image') for value in values)
  assert 1 in scalars(tmp_path, 'accuracy') and 1 in scalars(tmp_path, 'gradient_norm')

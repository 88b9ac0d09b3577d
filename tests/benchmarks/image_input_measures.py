"""What the comparisons of image files measure, a part in a process of its own.

  python tests/benchmarks/image_input_measures.py PART ARGUMENTS

ARGUMENTS are those of the function PART below, as JSON. The last line that it prints is what that
function returns, as JSON.
"""

import contextlib
import json
import os
import statistics
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

import common
import image_yardsticks
import numpy as np
import psutil
import tensorflow.compat.v1 as tf

from estimator_train.data import DataSet, ImageSplit, Role, arrays, datasets
from estimator_train.data.opening import make_input_settings, make_source, make_train_input_fn
from estimator_train.data.source import Source
from estimator_train.model import frozen_features, initial_weights
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.system import machine, storage
from estimator_train.system.start_up import StartUpTimer
from estimator_train.training.preparation import PreparedModel, build_model, convert_model
from estimator_train.training.run import Run, open_run
from estimator_train.training.timing import StepTimer, StepTimes

# Small enough to diverge on no labels; a step costs the same at any rate.
LEARNING_RATE = 1e-6
_PAUSE_SECS = .5

InputFn = Callable[[], tf.data.Dataset]
Take = Callable[[], None]


def cold(data: Dict[str, Any], batch_size: int) -> Dict[str, float]:
  """Measures complete reads of the files, each begun with none of them in memory.

  The first batch of a pass is left out, with what it takes to start the threads. `from_memory`
  decodes and resizes the same images, whose contents are in memory before.

  Args:
    data: the settings that determine what is read.
    batch_size: images of a batch.

  Returns:
    Images a second of each input; and `read_share`, the least share of the files' bytes that a pass
    made the kernel get from storage.
  """
  settings = _settings(data)
  dataset = datasets.describe_data_set(settings)
  split = _split(dataset)
  batches = -(-len(split.files) // batch_size)
  size = sum(os.stat(file).st_size for file in split.files)
  figures: Dict[str, float] = {}
  shares: List[float] = []
  process = psutil.Process()
  os.sync()  # Pages that are still to be written cannot be dropped.
  for name, input_fn in (
      ('published', _make_published_input_fn(dataset, batch_size)),
      ('package', _make_input_fn(_source(dataset), settings, True, batch_size)),
      ('from_memory', image_yardsticks.make_decoding_from_memory(
          [_read(file) for file in split.files], settings.data.image_size[:2], batch_size)),
      ('decoding', _make_decoding_input_fn(split, batch_size))):
    with _opened(input_fn) as take:
      storage.advise_kernel(split.files, os.POSIX_FADV_DONTNEED)
      before = process.io_counters().read_bytes
      take()
      figures[name + '_per_sec'] = _images_per_sec(take, batch_size, batches - 1)
      after = process.io_counters().read_bytes
    if name != 'from_memory':
      shares.append((after - before) / size)
  return dict(figures, read_share=min(shares))


def fill(data: Dict[str, Any], batch_size: int, passes: int, folder: str) -> Dict[str, float]:
  """Measures the whole first epoch, each begun with no file in memory, and without and with caches.

  An epoch lasts from making the input to the last full batch: it includes allocating and filling a
  cache, but not waiting until the disk has stored its file, which the next epochs do not wait for
  either. The inputs take turns, after a pass of each that is left out, with what TensorFlow does
  once per process.

  Args:
    data: the settings that determine what is read.
    batch_size: images of a batch.
    passes: epochs of each input, of which the median counts.
    folder: for the caches.

  Returns:
    Images a second of the first epoch, as VALUE_per_sec for each value of --cache.
  """
  settings = _settings(data)
  dataset = datasets.describe_data_set(settings)
  files = _split(dataset).files
  batches = len(files) // batch_size
  rates: Dict[str, List[float]] = {'none': [], 'memory': [], 'folder': []}
  kept = []  # Memory that is freed would be quicker to allocate again.
  for number in range(passes + 1):
    for name, measured in rates.items():
      value = os.path.join(folder, str(number)) if name == 'folder' else name
      time.sleep(_PAUSE_SECS)  # The pass before still prefetches batches of its next epoch.
      os.sync()  # Pages that are still to be written cannot be dropped.
      storage.advise_kernel(files, os.POSIX_FADV_DONTNEED)
      began = time.perf_counter()
      source = _source(dataset)
      kept.append(source)
      cached_settings = settings.evolve(cache=value)
      with _opened(_make_input_fn(source, cached_settings, True, batch_size)) as take:
        for _ in range(batches):
          take()
        if number:
          measured.append(batches * batch_size / (time.perf_counter() - began))
      source.wait_until_cached()
  return {name + '_per_sec': statistics.median(values) for name, values in rates.items()}


def cache(data: Dict[str, Any], batch_size: int, window_secs: float,
          folder: str) -> Dict[str, float]:
  """Measures the second epoch and later ones: of files in the page cache, and of caches.

  Every window comes after a whole epoch in the same session, for all three.

  Args:
    data: the settings that determine what is read.
    batch_size: images of a batch.
    window_secs: the least length of a window.
    folder: for the cache.

  Returns:
    Images a second of each input.
  """
  settings = _settings(data)
  dataset = datasets.describe_data_set(settings)
  batches = -(-len(_split(dataset).files) // batch_size)
  input_fns = {'published': _make_published_input_fn(dataset, batch_size)}
  figures: Dict[str, float] = {}
  for name, value in (('memory', 'memory'), ('folder', folder)):
    input_fns[name] = _make_input_fn(
        _source(dataset), settings.evolve(cache=value), True, batch_size)
  for name, input_fn in input_fns.items():
    with _opened(input_fn) as take:
      for _ in range(batches):
        take()
      figures[name + '_per_sec'] = _images_per_sec(take, batch_size, 1, window_secs)
  return figures


def plain(steps: int, **rest: Any) -> Dict[str, float]:
  """Measures training steps of the whole network, on images from memory; see _prepare."""
  run, model = _prepare(steps, {'cache': 'memory'}, **rest)
  input_fn = _make_input_fn(run.data.train, run.settings, model.one_hot,
                            run.engine.examples_per_replica)
  return {'images_per_sec': _train(run, model, input_fn, steps)}


def features(steps: int, **rest: Any) -> Dict[str, float]:
  """Measures training steps with --cache_features, and what computing these takes."""
  run, model = _prepare(steps, {'cache_features': True}, **rest)
  source, settings, engine = run.data.train, run.settings, run.engine
  assert source is not None and model.frozen_part is not None
  began = time.perf_counter()
  computed = frozen_features.compute_features(
      model.frozen_part, initial_weights.initial_weights_path(run.run_dir.path),
      source, settings, engine.devices)
  secs = time.perf_counter() - began
  input_fn = arrays.make_train_input_fn(
      source, computed, source.read_class_indices(), *make_input_settings(
          source, settings, model.one_hot, engine.examples_per_replica))
  return {'images_per_sec': _train(run, model, input_fn, steps),
          'computed_per_sec': rest['images'] / secs}


def main() -> None:
  part, arguments = sys.argv[1:]
  machine.tune_for_cpu_training()
  tf.logging.set_verbosity(tf.logging.ERROR)
  measured = {function.__name__: function for function in (
      cold, fill, cache, plain, features)}[part](**json.loads(arguments))
  print(json.dumps(measured))


def _settings(data: Dict[str, Any], **others: Any) -> Settings:
  """Returns settings of what is read, in a mode that writes nothing unless another is given."""
  values = dict({'mode': 'input_benchmark', 'dataset': 'image_folder'}, **data)
  values['image_size'] = tuple(values['image_size'])
  return Settings(**dict(values, **others))


def _split(dataset: DataSet) -> ImageSplit:
  assert isinstance(dataset.train, ImageSplit)
  return dataset.train


def _source(dataset: DataSet) -> Source:
  return make_source(_split(dataset), dataset.spec, Role.TRAIN)


def _make_published_input_fn(dataset: DataSet, batch_size: int) -> InputFn:
  """Makes the input of the 2018 article, with its names listed before instead of in the graph.

  Pixels are float32 [B, height, width, 3] in [0, 1], labels one-hot.
  """
  split = _split(dataset)
  height, width, _ = dataset.image_shape

  def load(path: tf.Tensor) -> Any:
    image = tf.image.decode_jpeg(tf.read_file(path), channels=3)
    image = tf.image.convert_image_dtype(image, tf.float32)
    image = tf.image.resize_images(image, (height, width))
    folder = tf.string_split([path], os.sep).values[-2]
    return image, tf.cast(tf.equal(folder, tf.constant(dataset.labels)), tf.float32)

  return lambda: (
      _shuffled_paths(split)
      .apply(tf.data.experimental.map_and_batch(
          load, batch_size, num_parallel_calls=machine.available_cores()))
      .prefetch(tf.data.experimental.AUTOTUNE))


def _make_decoding_input_fn(split: ImageSplit, batch_size: int) -> InputFn:
  """Makes an input that reads and decodes, and hands over nothing but heights.

  It decodes grey images to one channel, as this package does: that is quicker.
  """
  def load(path: tf.Tensor) -> tf.Tensor:
    return tf.shape(tf.image.decode_jpeg(tf.read_file(path)))[0]

  return lambda: _shuffled_paths(split).apply(tf.data.experimental.map_and_batch(
      load, batch_size, num_parallel_calls=machine.available_cores()))


def _shuffled_paths(split: ImageSplit) -> tf.data.Dataset:
  """Returns the paths as list_files does, shuffled again and without end."""
  paths = tf.data.Dataset.from_tensor_slices(np.array(split.files, object))
  return paths.shuffle(len(split.files)).apply(tf.data.experimental.shuffle_and_repeat(2048))


def _read(file: Any) -> bytes:
  with open(file, 'rb') as opened:
    return opened.read()


@contextlib.contextmanager
def _opened(input_fn: InputFn) -> Iterator[Take]:
  """Yields what takes the next batch, in a graph and a session of its own."""
  with tf.Graph().as_default(), tf.Session(
      config=tf.ConfigProto(device_count={'GPU': 0})) as session:
    iterator = tf.data.make_initializable_iterator(input_fn())
    # The batch is made and stays there: training does not copy it to Python either.
    taken = tf.group(*tf.nest.flatten(iterator.get_next()))
    session.run(iterator.initializer)
    yield session.make_callable(taken)


def _images_per_sec(take: Take, batch_size: int, min_batches: int, min_secs: float = 0.) -> float:
  batches, secs, began = 0, 0., time.perf_counter()
  while batches < min_batches or secs < min_secs:
    take()
    batches += 1
    secs = time.perf_counter() - began
  return batches * batch_size / secs


def _make_input_fn(source: Source, settings: Settings, one_hot: bool,
                   batch_size: int) -> InputFn:
  return make_train_input_fn(
      source, settings, *make_input_settings(source, settings, one_hot, batch_size))


def _prepare(steps: int, others: Dict[str, Any], data: Dict[str, Any], images: int,
             batch_size: int, warmup_steps: int, trainable_layers: int,
             model_dir: str) -> Tuple[Run, PreparedModel]:
  """Prepares a training of VGG16 with random weights.

  Args:
    steps: to time.
    others: settings besides.
    data: the settings that determine what is read.
    images: how many of them, from all over the list.
    batch_size: images of a step.
    warmup_steps: before those that are timed.
    trainable_layers: the last layers of the network that train.
    model_dir: an empty folder.
  """
  run = open_run(_settings(
      data, mode='train', model='vgg16', trainable_layers=trainable_layers, model_dir=model_dir,
      batch_size=batch_size, train_steps=warmup_steps + steps, learning_rate=LEARNING_RATE,
      **others), RunDir(model_dir))
  dataset = datasets.describe_data_set(run.settings)
  split = _split(dataset)
  chosen = np.linspace(0, len(split.files) - 1, images).astype(int)
  some = ImageSplit([split.files[index] for index in chosen], split.classes[chosen])
  return (run._replace(data=run.data._replace(train=make_source(some, dataset.spec, Role.TRAIN))),
          convert_model(run, build_model(run)))


def _train(run: Run, model: PreparedModel, input_fn: InputFn, steps: int) -> float:
  """Returns the images a second of the last so many steps, what is between them included."""
  times = StepTimes(StartUpTimer())
  model.training_estimator.train(input_fn, hooks=[StepTimer(times)], max_steps=run.end_step)
  secs = times.end_times[-1] - times.end_times[-1 - steps]
  return steps * run.settings.optimizer.batch_size / secs


if __name__ == '__main__':
  common.exit_with(main)

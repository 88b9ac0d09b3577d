"""Small stand-ins for the data sets in ../shared/data, written by the tests themselves."""

import gzip
import io
import struct
import tarfile

import numpy as np
from PIL import Image


def write_idx(path, array):
  """Writes a gzipped idx file of images or labels."""
  array = np.asarray(array, np.uint8)
  header = struct.pack('>{}I'.format(1 + array.ndim), 0x800 + array.ndim, *array.shape)
  with gzip.open(str(path), 'wb') as file:
    file.write(header + array.tobytes())


def write_idx_files(folder, num_train, num_test):
  """Writes idx files by the names of MNIST's: 28x28, classes in turn, each with a bright row."""
  folder.mkdir(parents=True, exist_ok=True)
  random = np.random.RandomState(1)
  for split, count in (('train', num_train), ('t10k', num_test)):
    labels = np.arange(count) % 10
    images = random.randint(0, 100, (count, 28, 28))
    images[np.arange(count), 2 * labels] = 255
    write_idx(folder / (split + '-images-idx3-ubyte.gz'), images)
    write_idx(folder / (split + '-labels-idx1-ubyte.gz'), labels)


def cifar10_records(count, seed=1):
  """Returns images [count, 32, 32, 3], each with a bright row, their classes, and the records."""
  images = np.random.RandomState(seed).randint(0, 100, (count, 32, 32, 3)).astype(np.uint8)
  classes = (np.arange(count) % 10).astype(np.uint8)
  images[np.arange(count), 3 * classes] = 255
  return images, classes, b''.join(bytes([label]) + image.transpose(2, 0, 1).tobytes()
                                   for image, label in zip(images, classes))


def cifar10_archive(contents):
  """Returns an archive as that of CIFAR-10's binary version, with the files of `contents`."""
  result = io.BytesIO()
  with tarfile.open(fileobj=result, mode='w:gz', format=tarfile.GNU_FORMAT) as archive:
    folder = tarfile.TarInfo('cifar-10-batches-bin')
    folder.type = tarfile.DIRTYPE
    archive.addfile(folder)
    for name, content in contents.items():
      member = tarfile.TarInfo('cifar-10-batches-bin/' + name)
      member.size = len(content)
      archive.addfile(member, io.BytesIO(content))
  return result.getvalue()


def cifar10_files(per_file):
  """Returns the files of a small archive, with this number of images in each."""
  names = ['data_batch_{}.bin'.format(index) for index in range(1, 6)] + ['test_batch.bin']
  return dict({'batches.meta.txt': b'airplane\n'},
              **{name: cifar10_records(per_file, seed)[2] for seed, name in enumerate(names)})


def write_oct2017(folder):
  """Writes grey JPEGs in the folders of oct2017: 2 to train on and 8 in `val` of each class."""
  random = np.random.RandomState(2)
  for split, count in (('train', 2), ('val', 8)):
    for label in ('CNV', 'DME', 'DRUSEN', 'NORMAL'):
      (folder / split / label).mkdir(parents=True)
      for number in range(count):
        _noise(random, 62 + 8 * number, 64).convert('L').save(
            str(folder / split / label / '{}-{}.jpeg'.format(label, number)))


def write_awkward_images(folder):
  """Writes ten files by the names of those in bad-images, each awkward in the same way."""
  folder.mkdir(parents=True, exist_ok=True)
  random = np.random.RandomState(3)

  def save(name, image, kind, **options):
    path = folder / (name + '.jpeg')
    image.save(str(path), kind, **options)
    return path

  save('cmyk', _noise(random, 40, 30).convert('CMYK'), 'JPEG')
  exif = Image.Exif()
  exif[0x112] = 6
  save('exif_orientation_6', _noise(random, 40, 30), 'JPEG', exif=exif.tobytes())
  save('gif_renamed', _noise(random, 40, 30).convert('P'), 'GIF')
  save('progressive', _noise(random, 40, 30), 'JPEG', progressive=True)
  save('png16_gray_renamed',
       Image.fromarray(random.randint(0, 2 ** 16, (32, 32)).astype(np.uint16)), 'PNG')

  path = save('truncated_half', _noise(random, 200, 100).convert('L'), 'JPEG')
  path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
  path = save('jpeg_12bit', _noise(random, 40, 30), 'JPEG')
  content = bytearray(path.read_bytes())
  frame = content.index(b'\xff\xc0')
  content[frame + 1], content[frame + 4] = 0xc1, 12  # Extended sequential, of 12 bits.
  path.write_bytes(bytes(content))
  path = save('broken_png_renamed', _noise(random, 40, 30), 'PNG')
  content = bytearray(path.read_bytes())
  data = content.index(b'IDAT') + 4
  content[data:data + 100] = bytes(100)
  path.write_bytes(bytes(content))
  (folder / 'text_renamed.jpeg').write_text('this is no image')
  (folder / 'zero_bytes.jpeg').write_bytes(b'')


def _noise(random, width, height):
  return Image.fromarray(random.randint(0, 256, (height, width, 3)).astype(np.uint8))

"""Small stand-ins for the data sets in ../shared/data, written by the tests themselves."""

import gzip
import io
import struct
import tarfile

import numpy as np
from PIL import Image


def idx_bytes(array, magic=None):
  """Returns an idx file of images or labels, perhaps with a wrong magic number."""
  array = np.asarray(array, np.uint8)
  return struct.pack('>{}I'.format(1 + array.ndim), magic or 0x800 + array.ndim,
                     *array.shape) + array.tobytes()


def write_idx(path, array):
  """Writes a gzipped idx file of images or labels."""
  with gzip.open(str(path), 'wb') as file:
    file.write(idx_bytes(array))


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


def cifar_archive(contents, folder_name='cifar-10-batches-bin'):
  """Returns an archive as those of CIFAR's binary versions, with the files of `contents`."""
  result = io.BytesIO()
  with tarfile.open(fileobj=result, mode='w:gz', format=tarfile.GNU_FORMAT) as archive:
    folder = tarfile.TarInfo(folder_name)
    folder.type = tarfile.DIRTYPE
    archive.addfile(folder)
    for name, content in contents.items():
      member = tarfile.TarInfo(folder_name + '/' + name)
      member.size = len(content)
      archive.addfile(member, io.BytesIO(content))
  return result.getvalue()


def cifar10_files(per_file):
  """Returns the images of six files, [6, N, 32, 32, 3], and the files of an archive by name.

  Each image has a bright row for its class, which is that of its number in the file.
  """
  names = ['data_batch_{}.bin'.format(index) for index in range(1, 6)] + ['test_batch.bin']
  images = np.random.RandomState(1).randint(0, 100, (6, per_file, 32, 32, 3)).astype(np.uint8)
  classes = np.arange(per_file) % 10
  images[:, np.arange(per_file), 3 * classes] = 255
  contents = (np.column_stack([classes, of_file.transpose(0, 3, 1, 2).reshape(per_file, -1)])
              .astype(np.uint8).tobytes() for of_file in images)
  return images, dict(zip(names, contents), **{'batches.meta.txt': b'airplane\n'})


def write_oct2017(folder):
  """Writes grey JPEGs in the folders of oct2017: 2 to train on and 8 in `val` of each class."""
  random = np.random.RandomState(2)
  for split, count in (('train', 2), ('val', 8)):
    for label in ('CNV', 'DME', 'DRUSEN', 'NORMAL'):
      (folder / split / label).mkdir(parents=True)
      for number in range(count):
        _noise(random, 62 + 8 * number, 64).convert('L').save(
            str(folder / split / label / '{}-{}.jpeg'.format(label, number)))


def encoded(image, form, **options):
  """Returns the bytes of an image file of a Pillow image."""
  file = io.BytesIO()
  image.save(file, form, **options)
  return file.getvalue()


def exif(orientation):
  """Returns EXIF data with an orientation."""
  data = Image.Exif()
  data[0x112] = orientation
  return data.tobytes()


def awkward_images():
  """Returns ten files by the names of those in bad-images, each awkward in the same way."""
  random = np.random.RandomState(3)
  noise, deep = _noise(random, 60, 50), random.randint(0, 2 ** 16, (32, 32)).astype(np.uint16)
  jpeg, png = encoded(noise, 'JPEG'), encoded(noise, 'PNG')
  frame, data = jpeg.index(b'\xff\xc0'), png.index(b'IDAT') + 4
  return {
      'cmyk.jpeg': encoded(noise.convert('CMYK'), 'JPEG'),
      'exif_orientation_6.jpeg': encoded(noise, 'JPEG', exif=exif(6)),
      'gif_renamed.jpeg': encoded(noise, 'GIF'),
      'progressive.jpeg': encoded(noise, 'JPEG', progressive=True),
      'png16_gray_renamed.jpeg': encoded(Image.fromarray(deep), 'PNG'),
      'truncated_half.jpeg': jpeg[:len(jpeg) // 2],
      # Extended sequential, of 12 bits.
      'jpeg_12bit.jpeg': (jpeg[:frame] + b'\xff\xc1' + jpeg[frame + 2:frame + 4] + b'\x0c'
                          + jpeg[frame + 5:]),
      'broken_png_renamed.jpeg': png[:data] + bytes(100) + png[data + 100:],
      'text_renamed.jpeg': b'this is no image',
      'zero_bytes.jpeg': b''}


def write_awkward_images(folder):
  """Writes those files."""
  folder.mkdir(parents=True, exist_ok=True)
  for name, content in awkward_images().items():
    (folder / name).write_bytes(content)


def _noise(random, width, height):
  return Image.fromarray(random.randint(0, 256, (height, width, 3)).astype(np.uint8))

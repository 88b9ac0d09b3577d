"""The input of training from image files by PyTorch's DataLoader and PIL, to compare with.

  PYTHON tests/benchmarks/torch_images.py --train_pattern=PATTERN [--image_size=224,224]
      [--workers=2] [--batch_size=32]

What torchvision's ImageFolder does with Resize and ToTensor: float32 [B, 3, height, width] in
[0, 1]. All files are read once, after they are dropped from the page cache. PYTHON is one that has
torch, which this package's has not: so nothing of it is imported. The last line is images a second
without the first batch, which starts the workers, as JSON.
"""

import argparse
import glob
import json
import os
import time
from typing import Any, List, Tuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
  """Image files, whose class is the folder that they are in."""

  def __init__(self, files: List[str], height_width: Tuple[int, int]) -> None:
    self._files = files
    self._height_width = height_width
    folders = [os.path.basename(os.path.dirname(file)) for file in files]
    classes = sorted(set(folders))
    self._labels = [classes.index(folder) for folder in folders]

  def __len__(self) -> int:
    return len(self._files)

  def __getitem__(self, index: int) -> Any:
    with Image.open(self._files[index]) as file:
      image = file.convert('RGB').resize(self._height_width[::-1], Image.BILINEAR)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
    return pixels, self._labels[index]


def main() -> None:
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument('--train_pattern', required=True)
  parser.add_argument('--image_size', default='224,224')
  parser.add_argument('--workers', type=int, default=2)
  parser.add_argument('--batch_size', type=int, default=32)
  args = parser.parse_args()
  height, width = map(int, args.image_size.split(','))
  files = sorted(glob.glob(args.train_pattern, recursive=True))
  loader = DataLoader(Images(files, (height, width)), batch_size=args.batch_size, shuffle=True,
                      num_workers=args.workers)
  os.sync()  # Pages that are still to be written cannot be dropped.
  for file in files:
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
  taken, began = 0, 0.
  for images, _ in loader:
    if began:
      taken += len(images)
    else:
      began = time.perf_counter()
  print(json.dumps({'images_per_sec': taken / (time.perf_counter() - began),
                    'images_timed': taken}))


if __name__ == '__main__':
  main()

"""The same small network in PyTorch, eager, to compare this package with.

  PYTHON tests/benchmarks/torch_fashion.py --data_dir=DIR [--layout=nchw|nhwc] [--train_steps=300]
      [--warmup_steps=20] [--batch_size=256]

`fashion_cnn` on Fashion-MNIST with Adam. All images are in memory as uint8, and a batch is picked
and scaled by the training loop: no loader could be quicker. PYTHON is one that has torch, which
this package's has not: so nothing of it is imported. The last line is images a second between the
end of the warm-up and the end of the last step, as JSON.
"""

import argparse
import gzip
import json
import os
import time
from typing import Any, Tuple

import numpy as np
import torch
from torch import nn


def main() -> None:
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument('--data_dir', required=True)
  parser.add_argument('--layout', choices=('nchw', 'nhwc'), default='nchw')
  parser.add_argument('--train_steps', type=int, default=300)
  parser.add_argument('--warmup_steps', type=int, default=20)
  parser.add_argument('--batch_size', type=int, default=256)
  args = parser.parse_args()

  torch.manual_seed(1)
  images, labels = _load(args.data_dir)
  layout = torch.channels_last if args.layout == 'nhwc' else torch.contiguous_format
  network = _fashion_cnn().to(memory_format=layout)
  optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
  loss_fn = nn.CrossEntropyLoss()
  began, order, at = 0., torch.randperm(len(labels)), 0
  for step in range(args.train_steps):
    if step == args.warmup_steps:
      began = time.perf_counter()
    if at + args.batch_size > len(labels):
      order, at = torch.randperm(len(labels)), 0
    chosen = order[at:at + args.batch_size]
    at += args.batch_size
    batch = (images[chosen].float() / 255).contiguous(memory_format=layout)
    optimizer.zero_grad()
    loss = loss_fn(network(batch), labels[chosen])
    loss.backward()
    optimizer.step()
    loss.item()  # As training that looks at its loss does.
  steps = args.train_steps - args.warmup_steps
  print(json.dumps({'images_per_sec': steps * args.batch_size / (time.perf_counter() - began),
                    'steps_timed': steps}))


def _load(data_dir: str) -> Tuple[Any, Any]:
  """Returns images, uint8 [N, 1, 28, 28], and labels, int64 [N]."""
  with gzip.open(os.path.join(data_dir, 'train-labels-idx1-ubyte.gz')) as file:
    labels = np.frombuffer(file.read(), np.uint8, offset=8)
  with gzip.open(os.path.join(data_dir, 'train-images-idx3-ubyte.gz')) as file:
    images = np.frombuffer(file.read(), np.uint8, offset=16)
  return (torch.from_numpy(images.copy()).view(len(labels), 1, 28, 28),
          torch.from_numpy(labels.astype(np.int64)))


def _fashion_cnn() -> nn.Module:
  """Returns the network, but for its softmax, which is in the loss."""
  return nn.Sequential(
      nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(),
      nn.MaxPool2d(2), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 64), nn.ReLU(),
      nn.Linear(64, 10))


if __name__ == '__main__':
  main()

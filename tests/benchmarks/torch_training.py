"""The same networks in PyTorch, to compare this package with.

  PYTHON tests/benchmarks/torch_training.py [--model=fashion_cnn|vgg16|resnet50] [--data_dir=DIR]
      [--layout=nchw|nhwc] [--compile] [--trainable_layers=N] [--image_size=224]
      [--train_steps=300] [--warmup_steps=20] [--batch_size=256]

Trains with Adam. `fashion_cnn` trains on Fashion-MNIST, which is in memory as uint8; the others on
one random batch of uint8 images, as `--dataset=synthetic` does. The training loop picks a batch and
scales it: no loader could be quicker. --compile compiles the network by torch.compile, which needs
a C++ compiler. PYTHON is one that has torch, which this package's has not: so nothing of it is
imported. The last line is images a second between the end of the warm-up and the end of the last
step, as JSON.
"""

import argparse
import gzip
import json
import os
import time
from typing import Any, Callable, List, Optional, Tuple

import numpy as np
import torch
from torch import nn

NUM_CLASSES = 10
# Filters and number of convolutions of each block.
_VGG16_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_RESNET50_BLOCKS = ((64, 3), (128, 4), (256, 6), (512, 3))


def main() -> None:
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument('--model', choices=tuple(_NETWORKS), default='fashion_cnn')
  parser.add_argument('--data_dir')
  parser.add_argument('--layout', choices=('nchw', 'nhwc'), default='nchw')
  parser.add_argument('--compile', action='store_true')
  parser.add_argument('--trainable_layers', type=int,
                      help='layers of the package\'s network before its head that train')
  parser.add_argument('--image_size', type=int, default=224)
  parser.add_argument('--train_steps', type=int, default=300)
  parser.add_argument('--warmup_steps', type=int, default=20)
  parser.add_argument('--batch_size', type=int, default=256)
  args = parser.parse_args()

  torch.manual_seed(1)
  layout = torch.channels_last if args.layout == 'nhwc' else torch.contiguous_format
  network = _NETWORKS[args.model](args.image_size)
  if args.trainable_layers is not None:
    _freeze(network, args.trainable_layers)
  network = network.to(memory_format=layout)
  optimizer = torch.optim.Adam(
      [weight for weight in network.parameters() if weight.requires_grad], lr=0.001)
  loss_fn = nn.CrossEntropyLoss()
  train_network: Callable[..., Any] = torch.compile(network) if args.compile else network
  next_batch = _make_next_batch(args)
  began = 0.
  for step in range(args.train_steps):
    if step == args.warmup_steps:
      began = time.perf_counter()
    images, labels = next_batch()
    batch = (images.float() / 255).contiguous(memory_format=layout)
    optimizer.zero_grad()
    loss = loss_fn(train_network(batch), labels)
    loss.backward()
    optimizer.step()
    loss.item()  # As training that looks at its loss does.
  steps = args.train_steps - args.warmup_steps
  print(json.dumps({'images_per_sec': steps * args.batch_size / (time.perf_counter() - began),
                    'steps_timed': steps}))


def _make_next_batch(args: Any) -> Callable[[], Tuple[Any, Any]]:
  """Returns a function that returns images, uint8 [B, channels, height, width], and labels."""
  if args.model != 'fashion_cnn':
    batch = (torch.randint(0, 256, (args.batch_size, 3, args.image_size, args.image_size),
                           dtype=torch.uint8),
             torch.randint(0, NUM_CLASSES, (args.batch_size,)))
    return lambda: batch
  images, labels = _load(args.data_dir)
  order, at = torch.randperm(len(labels)), 0

  def next_batch() -> Tuple[Any, Any]:
    nonlocal order, at
    if at + args.batch_size > len(labels):
      order, at = torch.randperm(len(labels)), 0
    chosen = order[at:at + args.batch_size]
    at += args.batch_size
    return images[chosen], labels[chosen]

  return next_batch


def _load(data_dir: str) -> Tuple[Any, Any]:
  """Returns images, uint8 [N, 1, 28, 28], and labels, int64 [N]."""
  with gzip.open(os.path.join(data_dir, 'train-labels-idx1-ubyte.gz')) as file:
    labels = np.frombuffer(file.read(), np.uint8, offset=8)
  with gzip.open(os.path.join(data_dir, 'train-images-idx3-ubyte.gz')) as file:
    images = np.frombuffer(file.read(), np.uint8, offset=16)
  return (torch.from_numpy(images.copy()).view(len(labels), 1, 28, 28),
          torch.from_numpy(labels.astype(np.int64)))


def _freeze(network: nn.Module, trainable_layers: int) -> None:
  """Freezes VGG16 but for its last layers; an activation is part of its convolution, as in Keras.

  Each module of the network but the last two, which are the head, is such a layer.
  """
  layers = list(network.children())[:-2]
  for layer in layers[:len(layers) - trainable_layers]:
    layer.requires_grad_(False)


def _fashion_cnn(image_size: int) -> nn.Module:
  """Returns the network, but for its softmax, which is in the loss."""
  return nn.Sequential(
      nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(),
      nn.MaxPool2d(2), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 64), nn.ReLU(),
      nn.Linear(64, NUM_CLASSES))


def _vgg16(image_size: int) -> nn.Module:
  """Returns VGG16 with the head that this package gives it."""
  layers: List[nn.Module] = []
  channels = 3
  for filters, convolutions in _VGG16_BLOCKS:
    for _ in range(convolutions):
      layers.append(nn.Sequential(nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU()))
      channels = filters
    layers.append(nn.MaxPool2d(2))
  return nn.Sequential(*layers, nn.Flatten(),
                       nn.Linear(channels * (image_size // 32) ** 2, NUM_CLASSES))


class _Bottleneck(nn.Module):
  """A residual block of ResNet-50 as tf.keras.applications has it: stride in its first layer."""

  def __init__(self, channels: int, filters: int, stride: int, projects: bool) -> None:
    super().__init__()
    self.branch = nn.Sequential(
        *_convolution(channels, filters, 1, stride), nn.ReLU(),
        *_convolution(filters, filters, 3), nn.ReLU(), *_convolution(filters, 4 * filters, 1))
    self.shortcut: Optional[nn.Module] = (
        nn.Sequential(*_convolution(channels, 4 * filters, 1, stride)) if projects else None)

  def forward(self, inputs: Any) -> Any:
    shortcut = inputs if self.shortcut is None else self.shortcut(inputs)
    return torch.relu(self.branch(inputs) + shortcut)


def _convolution(channels: int, filters: int, size: int, stride: int = 1) -> List[nn.Module]:
  """Returns a convolution with a bias, and its batch norm."""
  return [nn.Conv2d(channels, filters, size, stride, size // 2),
          nn.BatchNorm2d(filters, eps=1.001e-5, momentum=.01)]


def _resnet50(image_size: int) -> nn.Module:
  """Returns ResNet-50 with the head that this package gives it: no average over the pixels."""
  layers = [*_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
  channels = 64
  for filters, blocks in _RESNET50_BLOCKS:
    for block in range(blocks):
      stride = 2 if block == 0 and filters != 64 else 1
      layers.append(_Bottleneck(channels, filters, stride, projects=block == 0))
      channels = 4 * filters
  return nn.Sequential(*layers, nn.Flatten(),
                       nn.Linear(channels * (-(-image_size // 32)) ** 2, NUM_CLASSES))


_NETWORKS = {'fashion_cnn': _fashion_cnn, 'vgg16': _vgg16, 'resnet50': _resnet50}


if __name__ == '__main__':
  main()

"""What the tests share: a clean environment, the program in this process, and the real data."""

import gzip
import json
import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from estimator_train import __main__ as program

ROOT = Path(__file__).resolve().parent.parent
REAL_DATA = ROOT.parent / 'shared' / 'data'


class Outcome(NamedTuple):
  """What a run of the program left: its code, its output, and the result on its last line."""
  code: int
  out: str
  err: str

  @property
  def result(self):
    return json.loads(self.out.splitlines()[-1])


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
  monkeypatch.delenv('TF_CONFIG', raising=False)


@pytest.fixture
def run_program(capsys):
  """Runs the program in this process, as importing TensorFlow takes seconds."""
  def run(*arguments):
    capsys.readouterr()
    code = program.main([str(argument) for argument in arguments])
    return Outcome(code, *capsys.readouterr())

  return run


@pytest.fixture(scope='session')
def fashion_mnist_dir():
  """The folder of the real Fashion-MNIST files."""
  folder = REAL_DATA / 'fashion-mnist'
  if not folder.is_dir():
    pytest.skip('the real files are not beside the checkout: {}'.format(folder))
  return folder


@pytest.fixture
def write_idx(tmp_path):
  """Writes gzipped idx files of arrays and returns their paths."""
  def write(images, labels, name='train'):
    paths = []
    for kind, magic, array in (('images', 0x803, images), ('labels', 0x801, labels)):
      header = struct.pack('>{}I'.format(1 + np.ndim(array)), magic, *np.shape(array))
      path = os.path.join(str(tmp_path), '{}-{}.gz'.format(name, kind))
      with gzip.open(path, 'wb') as file:
        file.write(header + np.asarray(array, np.uint8).tobytes())
      paths.append(path)
    return paths

  return write

"""What a run left in its `model_dir`, read for the page."""

import json
import logging
import os
import re
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from estimator_train.reports import evaluation, input_benchmark, throughput
from estimator_train.reports.step_curve import FOLDER

_LOG = logging.getLogger('estimator_train')
_PNG = b'\x89PNG\r\n\x1a\n'


class Flags(NamedTuple):
  """The flags of `flags.txt`: those that have a value, and the names of the others."""
  given: Dict[str, str]
  not_set: List[str]


class Files(NamedTuple):
  """The contents of the files; a file that is missing is empty.

  Attributes:
    flags: of `flags.txt`.
    throughput, evaluation, input_benchmark, scaling, ledger: of the files of these names.
    steps, curves: of the files of these names in `report/`.
    samples: of `report/samples.json`, the list.
  """
  flags: Flags
  throughput: Dict[str, Any]
  evaluation: Dict[str, Any]
  input_benchmark: Dict[str, Any]
  scaling: Dict[str, Any]
  ledger: Dict[str, Any]
  steps: Dict[str, Any]
  curves: Dict[str, Any]
  samples: List[Dict[str, Any]]


def read(model_dir: str) -> Files:
  """Reads the files of a `model_dir`."""
  def read_json(*name: str) -> Dict[str, Any]:
    return _read_json(os.path.join(model_dir, *name))

  return Files(
      flags=_read_flags(os.path.join(model_dir, 'flags.txt')),
      throughput=read_json(throughput.FILE),
      evaluation=read_json(evaluation.FILE),
      input_benchmark=read_json(input_benchmark.FILE),
      scaling=read_json('scaling.json'),
      ledger=read_json('ledger.json'),
      steps=read_json(FOLDER, 'steps.json'),
      curves=read_json(FOLDER, 'curves.json'),
      samples=read_json(FOLDER, 'samples.json').get('samples', []))


def _read_json(path: str) -> Dict[str, Any]:
  try:
    with open(path, encoding='utf-8') as file:
      found = json.load(file)
    if not isinstance(found, dict):
      raise ValueError('it is no JSON object')
    return found
  except FileNotFoundError:
    return {}
  except (OSError, ValueError) as error:
    _LOG.warning('the page is without %s: %s', path, error)
    return {}


def _read_flags(path: str) -> Flags:
  try:
    with open(path, encoding='utf-8') as file:
      text = file.read()
  except FileNotFoundError:
    text = ''
  return Flags(dict(re.findall(r'^--(\w+)=(.*)$', text, re.MULTILINE)),
               re.findall(r'^# --(\w+) is not set$', text, re.MULTILINE))


def read_image(model_dir: str, name: str) -> Optional[Tuple[bytes, int, int]]:
  """Reads a PNG in `report/`.

  Returns:
    Its bytes, width and height; None where there is no such file, or it is no PNG.
  """
  if os.path.basename(name) != name:  # Others are not of this report.
    return None
  try:
    with open(os.path.join(model_dir, FOLDER, name), 'rb') as file:
      content = file.read()
  except (OSError, ValueError):  # ValueError: a name that no file can have.
    return None
  if content[:8] != _PNG or content[12:16] != b'IHDR' or len(content) < 24:
    return None
  width, height = struct.unpack('>II', content[16:24])
  return (content, width, height) if width and height else None

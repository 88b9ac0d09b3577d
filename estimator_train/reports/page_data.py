"""Reads the files in a `model_dir` from which the report page is made."""

import os
import re
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from estimator_train.files import stored
from estimator_train.reports import evaluation, samples, throughput
from estimator_train.reports.step_curve import REPORT_FOLDER

_OMITTED = 'the report page omits it'
_PNG_SIGNATURE = b'\x89PNG\r\n\x1a\n'


class RecordedFlags(NamedTuple):
  """The flags in `flags.txt`: values by name, and the names of the flags that are not set."""
  values: Dict[str, str]
  not_set: List[str]


class PageData(NamedTuple):
  """The contents of the files in a `model_dir`. A missing or invalid file has empty contents.

  Attributes:
    flags: flags in `flags.txt`.
    throughput, evaluation, input_benchmark, scaling: contents of the JSON file of the same name.
    ledger: contents of `ledger.json`: the published and measured figures of `--mode=reproduce`.
    steps, curves: contents of `report/steps.json` and `report/curves.json`.
    samples: the list in `report/samples.json`.
    outputs: contents of `report/outputs.json`.
  """
  flags: RecordedFlags
  throughput: Dict[str, Any]
  evaluation: Dict[str, Any]
  input_benchmark: Dict[str, Any]
  scaling: Dict[str, Any]
  ledger: Dict[str, Any]
  steps: Dict[str, Any]
  curves: Dict[str, Any]
  samples: List[Dict[str, Any]]
  outputs: Dict[str, Any]


def read_page_data(model_dir: str) -> PageData:
  """Reads the files in a `model_dir` that the report page shows."""
  def read_json(*path: str) -> Dict[str, Any]:
    return _read_json(os.path.join(model_dir, *path))

  return PageData(
      flags=_read_flags(os.path.join(model_dir, 'flags.txt')),
      throughput=read_json(throughput.THROUGHPUT_FILE),
      evaluation=read_json(evaluation.EVALUATION_FILE),
      input_benchmark=read_json('input_benchmark.json'),
      scaling=read_json('scaling.json'),
      ledger=read_json('ledger.json'),
      steps=read_json(REPORT_FOLDER, 'steps.json'),
      curves=read_json(REPORT_FOLDER, 'curves.json'),
      samples=read_json(REPORT_FOLDER, 'samples.json').get('samples', []),
      outputs=read_json(REPORT_FOLDER, samples.OUTPUTS_FILE))


def _read_json(path: str) -> Dict[str, Any]:
  """Returns the JSON object in a file; empty if the file is missing or invalid."""
  return stored.load_or_warn(path, stored.parse_json, _OMITTED) or {}


def _read_flags(path: str) -> RecordedFlags:
  """Returns the flags in `flags.txt`; empty if the file is missing or cannot be read."""
  text = stored.load_or_warn(path, stored.parse_text, _OMITTED) or ''
  return RecordedFlags(dict(re.findall(r'^--(\w+)=(.*)$', text, re.MULTILINE)),
                       re.findall(r'^# --(\w+) is not set$', text, re.MULTILINE))


def read_image(model_dir: str, name: str) -> Optional[Tuple[bytes, int, int]]:
  """Reads a PNG file in `report/`.

  Returns:
    The bytes of the file, and the width and height of the image in pixels; None if the file does
    not exist or is not a PNG.
  """
  if os.path.basename(name) != name:  # A name with folders could lead outside of `report/`.
    return None
  content = stored.load_or_warn(os.path.join(model_dir, REPORT_FOLDER, name),
                                lambda file: file.read(), _OMITTED) or b''
  if content[:8] != _PNG_SIGNATURE or content[12:16] != b'IHDR' or len(content) < 24:
    return None
  width, height = struct.unpack('>II', content[16:24])
  return (content, width, height) if width and height else None

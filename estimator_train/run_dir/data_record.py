"""Records in `data.json` which examples a run trains and evaluates on.

    test_examples   the digest of the test examples (Source.content_digest), or null if unknown
    validation      which training examples --validation_fraction takes, or null if the run
                    trains on all of them
"""

import base64
from typing import BinaryIO, NamedTuple, Optional

from estimator_train.errors import UserError
from estimator_train.run_dir import FLAGS_FILE, RunDir
from estimator_train.settings.flag_type import all_flags
from estimator_train.system import json_values, storage

DATA_FILE = 'data.json'
_RECORD = json_values.fields({
    'test_examples': json_values.optional(json_values.text),
    'validation': json_values.optional(json_values.fields({
        'fraction': json_values.number(0, 1), 'seed': json_values.integer(),
        'examples': json_values.text}))})


class Holdout(NamedTuple):
  """The training examples that the run holds out for validation.

  Attributes:
    seed: `--seed` of the first training run.
    example_ids: a big-endian integer of 64 bits per example for validation; None if the examples
      are unknown. The file has these bytes as base64.
  """
  fraction: float
  seed: int
  example_ids: Optional[bytes] = None


class DataRecord(NamedTuple):
  """The contents of the file."""
  test_examples: Optional[str] = None
  validation: Optional[Holdout] = None


def read(run_dir: RunDir) -> Optional[DataRecord]:
  """Returns the record of the last training run; None if it is unknown what the run trained on.

  If the file is missing or damaged, the result has only what the flags of the run specify.
  """
  record = storage.load_or_warn(run_dir.path_to(DATA_FILE), _parse,
                                'using what {} states'.format(run_dir.path_to(FLAGS_FILE)))
  if record is not None:
    return record
  texts = run_dir.read_flags()
  try:
    validation = Holdout(*(all_flags()[name].parse(texts[name]) for name in (
        'validation_fraction', 'seed'))) if texts.get('validation_fraction') else None
  except (KeyError, UserError):  # The file was edited.
    return None
  return DataRecord(validation=validation) if texts else None


def write(run_dir: RunDir, record: DataRecord) -> None:
  """Writes the record. Must be called before training changes a weight."""
  holdout = record.validation
  storage.write_json(run_dir.path_to(DATA_FILE), {
      'test_examples': record.test_examples,
      'validation': holdout and {
          'fraction': holdout.fraction, 'seed': holdout.seed,
          'examples': base64.b64encode(holdout.example_ids or b'').decode()}})


def _parse(file: BinaryIO) -> DataRecord:
  record = storage.parse_json(file, _RECORD)
  validation = record['validation']
  if validation is not None:
    example_ids = base64.b64decode(validation['examples'], validate=True)
    if not example_ids or len(example_ids) % 8:
      raise ValueError('validation.examples is truncated')
    validation = Holdout(validation['fraction'], validation['seed'], example_ids)
  return DataRecord(record['test_examples'], validation)

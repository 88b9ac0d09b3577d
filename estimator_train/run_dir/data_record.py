"""Records in `data.json` which examples a run trains and evaluates on.

    test_examples   the digest of the test examples (Source.digest); null: unknown
    validation      which examples --validation_fraction takes from the training examples; null:
                    the run trains on all of them
"""

from typing import BinaryIO, Dict, NamedTuple, Optional

from estimator_train.run_dir import RunDir
from estimator_train.system import json_values, storage

DATA_FILE = 'data.json'
_FRACTION = json_values.number(0, 1)
_RECORD = json_values.fields({
    'test_examples': json_values.optional(json_values.text),
    'validation': json_values.optional(json_values.fields({
        'fraction': _FRACTION, 'seed': json_values.integer(),
        'names': json_values.optional(json_values.one_of('files', 'records')),
        'thresholds': json_values.optional(json_values.mapping(_FRACTION))}))})


class Validation(NamedTuple):
  """Which of the training examples are for validation.

  A hash of its name and of the seed, from 0 to 1, decides about an example: it is for validation if
  the hash is less than the threshold of its class. An example therefore never changes sides.

  Attributes:
    fraction: the threshold of most classes.
    seed: `--seed` of the first training run.
    names: what the names of the examples are: `files` or `records`; None: unknown.
    thresholds: the thresholds that are not `fraction`, by class index; None: unknown.
  """
  fraction: float
  seed: int
  names: Optional[str] = None
  thresholds: Optional[Dict[int, float]] = None


class DataRecord(NamedTuple):
  """The examples of a run.

  Attributes:
    test_examples: the digest of the test examples; None: unknown.
    validation: which of the training examples are for validation; None: none of them.
  """
  test_examples: Optional[str] = None
  validation: Optional[Validation] = None


def read(run_dir: RunDir) -> Optional[DataRecord]:
  """Returns the record of the last training run; None if it is unknown what the run trained on.

  Of a run without a readable record, only what its flags state is known.
  """
  record = storage.load_or_warn(run_dir.path_to(DATA_FILE), _parse,
                                'using what {} states'.format(run_dir.path_to('flags.txt')))
  if record is not None:
    return record
  flags = run_dir.flags()
  fraction = flags.get('validation_fraction')
  try:
    return DataRecord(validation=Validation(
        float(fraction), int(flags['seed'])) if fraction else None) if flags else None
  except (KeyError, ValueError):  # The file was edited.
    return None


def write(run_dir: RunDir, record: DataRecord) -> None:
  """Writes the record; must be called before training changes a weight."""
  storage.write_json(run_dir.path_to(DATA_FILE), {
      'test_examples': record.test_examples,
      'validation': record.validation and record.validation._asdict()})


def _parse(file: BinaryIO) -> DataRecord:
  record = storage.parse_json(file, _RECORD)
  validation = record['validation']
  if validation is not None:
    thresholds = validation['thresholds']  # The keys of JSON are text.
    validation = Validation(
        validation['fraction'], validation['seed'], validation['names'],
        None if thresholds is None else {int(index): threshold
                                         for index, threshold in thresholds.items()})
  return DataRecord(record['test_examples'], validation)

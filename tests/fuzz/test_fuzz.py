"""The fuzzers run, and find what is wrong."""

import fuzz_idx
import fuzz_unpack
import fuzzing
import pytest

from estimator_train.datasets import idx, unpack


@pytest.mark.parametrize('fuzzer', [fuzz_idx, fuzz_unpack])
def test_no_crash(fuzzer):
  found = fuzzing.run(fuzzer.make, fuzzer.check, seed=1, inputs=300)
  assert found['crashes'] == []
  # Neither all good nor all bad, and bad in several ways.
  assert found['inputs'] == 300 and 20 < found['accepted'] < 280
  assert len(found['refused']) >= 4


def test_idx_finds_what_is_not_checked(monkeypatch):
  monkeypatch.setattr(idx, '_check_labels', lambda path, num_classes: None)
  assert fuzzing.run(fuzz_idx.make, fuzz_idx.check, seed=1, inputs=300)['crashes']


def test_unpack_finds_what_is_not_checked(monkeypatch):
  monkeypatch.setattr(unpack, '_check_name', lambda info, archive: None)
  assert fuzzing.run(fuzz_unpack.make, fuzz_unpack.check, seed=1, inputs=300)['crashes']


def test_a_hang_is_found(monkeypatch):
  monkeypatch.setattr(fuzzing, 'HANG_SECS', 1)

  def check(unused_input, unused_folder):
    while True:
      pass

  (number, text), = fuzzing.run(lambda rng: 0, check, seed=1, inputs=1)['crashes']
  assert number == 0 and 'Hang: longer than 1 s' in text

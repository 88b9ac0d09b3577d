"""Tries a reader on changed copies of good files, for so long; used by the scripts beside it."""

import argparse
import collections
import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback

from estimator_train.errors import UserError

HANG_SECS = 120  # For an input of some kB: against hangs, not for speed.
MAX_MORE_BYTES = 1 << 29

# What lengths, offsets and counts go wrong at.
_NUMBERS = (0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff)


class Hang(BaseException):
  """An input took too long."""


def mutate(rng, data, others):
  """Returns the bytes with one to five changes; some take a piece of the other good files."""
  data = bytearray(data)
  for _ in range(rng.randint(1, 5)):
    place, length = rng.randint(0, len(data)), rng.choice((1, 2, 4, 8, rng.randint(1, 200)))
    kind = rng.randrange(7)
    if kind == 0 and data:
      data[place % len(data)] ^= 1 << rng.randrange(8)
    elif kind == 1:
      size = rng.choice((1, 2, 4))
      number = rng.choice(_NUMBERS) & (256 ** size - 1)
      data[place:place + size] = number.to_bytes(size, rng.choice(('big', 'little')))
    elif kind == 2:
      del data[place:place + length]
    elif kind == 3:
      data[place:place] = bytes(rng.getrandbits(8) for _ in range(length))
    elif kind == 4:
      data[place:place] = data[place:place + length]
    elif kind == 5:
      del data[place:]
    else:
      other = rng.choice(others)
      start = rng.randint(0, len(other))
      data[place:place + length] = other[start:start + length]
  return bytes(data)


def run(make, check, seed, secs=None, inputs=None):
  """Tries inputs until the time or their number is over.

  Args:
    make: makes an input from a random.Random: any value.
    check: reads it in an empty folder; raises an AssertionError where the outcome is wrong. It may
      raise UserErrors, and nothing else.
    seed: of the inputs.
    secs: to go on for.
    inputs: to try.

  Returns:
    A dict: `inputs` tried, how many were `accepted`, the UserErrors by what they said was
    wrong (`refused`), and the `crashes`: (number of the input, traceback).
  """
  refused, crashes = collections.Counter(), []
  tried = accepted = 0
  start, memory = time.monotonic(), _peak_bytes()
  before = signal.signal(signal.SIGALRM, _hang)
  try:
    while (secs is None or time.monotonic() - start < secs) and tried != inputs:
      given = make(random.Random('{} {}'.format(seed, tried)))
      folder = tempfile.mkdtemp()
      signal.alarm(HANG_SECS)
      try:
        check(given, folder)
        accepted += 1
      except UserError as error:
        refused[error.what.replace(folder, '')] += 1
        if len(str(error).splitlines()) != 1:
          crashes.append((tried, 'an error of several lines: ' + str(error)))
      except (Exception, Hang):
        crashes.append((tried, traceback.format_exc()))
      finally:
        signal.alarm(0)
        shutil.rmtree(folder)
      if _peak_bytes() - memory > MAX_MORE_BYTES:
        crashes.append((tried, 'it took {:,} bytes more'.format(_peak_bytes() - memory)))
        memory = _peak_bytes()
      tried += 1
  finally:
    signal.signal(signal.SIGALRM, before)
  return {'inputs': tried, 'secs': round(time.monotonic() - start, 1), 'accepted': accepted,
          'refused': dict(refused.most_common()), 'crashes': crashes}


def main(make, check):
  """Runs by the command line; ends with code 1 where something crashed."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--secs', type=float, default=60, help='how long (default: 60)')
  parser.add_argument('--seed', type=int, default=None, help='of the inputs; printed')
  args = parser.parse_args()
  seed = random.SystemRandom().randrange(10 ** 6) if args.seed is None else args.seed
  found = dict(run(make, check, seed, secs=args.secs), seed=seed)
  for number, text in found['crashes'][:10]:
    print('input {} of --seed={}:\n{}'.format(number, seed, text))
  found['crashes'] = len(found['crashes'])
  print(json.dumps(found))
  raise SystemExit(1 if found['crashes'] else 0)


def _hang(signum, frame):
  raise Hang('longer than {} s'.format(HANG_SECS))


def _peak_bytes():
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write(folder, name, data):
  """Writes a file and returns its path."""
  path = os.path.join(folder, name)
  with open(path, 'wb') as file:
    file.write(data)
  return path

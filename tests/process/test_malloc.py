"""malloc keeps the memory of freed blocks while the program trains, and returns it after that."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

# Allocates and frees blocks as the operations of a step do, in turn from two threads; prints the
# page faults of the last rounds, and the memory that stays resident after each stage.
SCRIPT = '''
import ctypes, json, resource, sys, threading
from estimator_train.process import malloc

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]

def rounds(count):
  for _ in range(count):
    blocks = [libc.malloc(ctypes.c_size_t(size << 20)) for size in (3, 20, 50)]
    for block, size in zip(blocks, (3, 20, 50)):
      ctypes.memset(block, 1, size << 20)
    for block in blocks:
      libc.free(block)

def in_a_thread(count):
  thread = threading.Thread(target=rounds, args=(count,))
  thread.start()
  thread.join()

def faults():
  return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident_mb():
  with open('/proc/self/statm') as file:
    return int(file.read().split()[1]) * resource.getpagesize() / 2 ** 20

kept = malloc.keep_freed_memory()
rounds(1), in_a_thread(1)
before = faults()
rounds(5), in_a_thread(5)
found = {'kept': kept, 'faults': faults() - before, 'resident_mb': resident_mb()}
malloc.return_freed_memory()
found['returned_mb'] = found['resident_mb'] - resident_mb()
print(json.dumps(found))
'''


def run(**variables):
  done = subprocess.run([sys.executable, '-c', SCRIPT], cwd=str(ROOT), timeout=60, check=True,
                        env=dict(PYTHONPATH=str(ROOT), **variables), stdout=subprocess.PIPE,
                        universal_newlines=True)
  return json.loads(done.stdout)


def test_freed_blocks_are_used_again_without_page_faults():
  found = run()
  assert found['kept']
  assert found['faults'] < 1000  # Ten rounds of 73 MiB have 186,880 pages.
  assert found['resident_mb'] > 70 and found['returned_mb'] > 60


@pytest.mark.parametrize('variables', [
    {'MALLOC_ARENA_MAX': '4'}, {'MALLOC_TRIM_THRESHOLD_': '131072'}, {'MALLOC_MMAP_MAX_': '65536'},
    {'GLIBC_TUNABLES': 'glibc.malloc.arena_max=4'}])
def test_what_the_user_has_set_stays(variables):
  found = run(**variables)
  assert not found['kept'] and found['faults'] > 10000

import subprocess
import sys

DEADLINE_SECS = 60.


def test_checksums_are_computed_in_c_without_pkg_resources():
  code = '''
import sys
from estimator_train.system import record_framing
record = record_framing.frame_record(b'content')
assert record_framing.parse_data_length(record) == len(b'content')
assert 'pkg_resources' not in sys.modules, 'imported for Windows only'
assert sys.modules['google_crc32c'].implementation == 'c'
'''
  subprocess.run([sys.executable, '-c', code], check=True, timeout=DEADLINE_SECS)

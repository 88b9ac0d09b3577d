"""scripts/audit.py: what pip-audit found against the table in SECURITY.md; and that table."""

import json
import re

import pytest
from conftest import ROOT, load_script

audit = load_script('audit')
TABLE = '''
| fake | 9 | all | not in the table | |
<!-- findings: begin -->
| package | version | ids | what | how |
| --- | --- | --- | --- | --- |
| old | 1.0, 2.0.post1 | CVE-1-2, CVE-3-4 | a vulnerability | a way |
| Older | 3 | all | many | a way |
<!-- findings: end -->
'''


def package(name, version, *vulnerabilities):
  return {'name': name, 'version': version,
          'vulns': [{'id': ids[0], 'aliases': list(ids[1:]), 'fix_versions': []}
                    for ids in vulnerabilities]}


SKIPPED = {'name': 'gone', 'skip_reason': 'Dependency not found on PyPI and could not be audited'}


@pytest.mark.parametrize('packages, code, told', [
    ([package('old', '1.0')], 0, 'vulnerabilities: 0 in'),
    ([package('old', '1.0', ['PYSEC-1', 'CVE-1-2'])], 0,
     'vulnerabilities: 1 in 1 pins, 0 of them not'),
    ([package('old', '2.0.post1', ['CVE-3-4'])], 0, 'vulnerabilities: 1 in'),
    ([package('older', '3', ['CVE-5-6'], ['CVE-7-8'])], 0, 'vulnerabilities: 2 in'),
    ([package('old', '1.0', ['CVE-1-2'], ['PYSEC-9', 'CVE-9-9'])], 1,
     'not in SECURITY.md: old 1.0: CVE-9-9, PYSEC-9'),
    ([package('old', '1.1', ['CVE-1-2'])], 1, 'not in SECURITY.md: old 1.1'),
    ([package('older', '4', ['CVE-5-6'])], 1, 'not in SECURITY.md: older 4'),
    ([package('fake', '9', ['CVE-5-6'])], 1, 'not in SECURITY.md: fake 9'),
    ([SKIPPED], 2, 'no information about 1 package(s): gone'),
    ([SKIPPED, package('new', '1', ['CVE-5-6'])], 1, 'not in SECURITY.md: new 1'),
])
def test_compare(tmp_path, capsys, packages, code, told):
  (tmp_path / 'SECURITY.md').write_text(TABLE)
  (tmp_path / 'a.json').write_text(json.dumps({'dependencies': packages, 'fixes': []}))
  (tmp_path / 'b.json').write_text(json.dumps({'dependencies': [package('fine', '1')]}))
  assert audit.main([str(tmp_path / name) for name in ('SECURITY.md', 'a.json', 'b.json')]) == code
  assert told in capsys.readouterr().out


def test_the_table_is_of_what_is_locked():
  pins = {tuple(pin) for path in (ROOT / 'requirements').glob('*.txt')
          for pin in re.findall(r'^([\w.-]+)==([^ ;\n]+)', path.read_text(), re.MULTILINE)}
  listed = audit.read_vulnerability_table((ROOT / 'SECURITY.md').read_text(encoding='utf-8'))
  assert len(listed) > 20 and all(listed.values())
  assert set(listed) <= pins
  # All versions of TensorFlow 1.15 have vulnerabilities that are not fixed.
  assert {('tensorflow', '1.15.0'), ('intel-tensorflow', '1.15.2')} <= set(listed)

"""scripts/audit.py: what pip-audit found against the table in SECURITY.md; and that table."""

import json
import re

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


def test_compare(tmp_path, capsys):
  skipped = {'name': 'gone', 'skip_reason': 'Dependency not found on PyPI'}
  for packages, code, message in (
      ([package('old', '1.0', ['PYSEC-1', 'CVE-1-2'])], 0, '1 in 1 pins, 0 of them not'),
      ([package('old', '2.0.post1', ['CVE-3-4'])], 0, 'vulnerabilities: 1 in'),
      ([package('older', '3', ['CVE-5-6'], ['CVE-7-8'])], 0, 'vulnerabilities: 2 in'),
      ([package('old', '1.0', ['CVE-1-2'], ['PYSEC-9', 'CVE-9-9'])], 1, 'old 1.0: CVE-9-9, PYSEC'),
      ([package('old', '1.1', ['CVE-1-2'])], 1, 'not in SECURITY.md: old 1.1'),
      ([package('fake', '9', ['CVE-5-6'])], 1, 'not in SECURITY.md: fake 9'),
      ([skipped], 2, 'no information about 1 package(s): gone'),
      ([skipped, package('new', '1', ['CVE-5-6'])], 1, 'not in SECURITY.md: new 1')):
    files = {'SECURITY.md': TABLE, 'a.json': json.dumps({'dependencies': packages, 'fixes': []}),
             'b.json': json.dumps({'dependencies': [package('fine', '1')]})}
    for name, text in files.items():
      (tmp_path / name).write_text(text)
    assert audit.main([str(tmp_path / name) for name in files]) == code
    assert message in capsys.readouterr().out


def test_the_table_is_of_what_is_locked():
  pins = {tuple(pin) for path in (ROOT / 'requirements').glob('*.txt')
          for pin in re.findall(r'^([\w.-]+)==([^ ;\n]+)', path.read_text(), re.MULTILINE)}
  listed = audit.read_vulnerability_table((ROOT / 'SECURITY.md').read_text(encoding='utf-8'))
  assert len(listed) > 20 and all(listed.values())
  assert set(listed) <= pins
  # All versions of TensorFlow 1.15 have vulnerabilities that are not fixed.
  assert {('tensorflow', '1.15.0'), ('intel-tensorflow', '1.15.2')} <= set(listed)

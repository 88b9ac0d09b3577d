"""scripts/audit.py: what pip-audit found against the table in SECURITY.md, and that table."""

import json
import re

from conftest import ROOT, load_script


def test_vulnerabilities_are_those_of_the_table(tmp_path, capsys):
  audit = load_script('audit')
  text = (ROOT / 'SECURITY.md').read_text(encoding='utf-8')
  listed = audit.read_vulnerability_table(text)
  pins = {tuple(pin) for path in (ROOT / 'requirements').glob('*.txt')
          for pin in re.findall(r'^([\w.-]+)==([^ ;\n]+)', path.read_text(), re.MULTILINE)}
  assert len(listed) > 20 and all(listed.values()) and set(listed) <= pins
  (tmp_path / 'SECURITY.md').write_text(text, encoding='utf-8')
  for version, code, message in (
      ('1.15.0', 0, '1 in 1 pins, 0 of them not'), ('9', 1, 'not in SECURITY.md: tensorflow 9')):
    package = {'name': 'tensorflow', 'version': version, 'vulns': [{'id': 'CVE-0', 'aliases': []}]}
    (tmp_path / 'a.json').write_text(json.dumps({'dependencies': [package]}))
    assert audit.main([str(tmp_path / 'SECURITY.md'), str(tmp_path / 'a.json')]) == code
    assert message in capsys.readouterr().out

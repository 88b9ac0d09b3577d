"""Compares the vulnerabilities that pip-audit found with the table in SECURITY.md, for audit.sh.

  PYTHON scripts/audit.py SECURITY.md JSON-FILE...

The JSON files are the output of pip-audit, one for each lock file.
"""

import json
import re
import sys
from pathlib import Path

ALL = 'all'


def main(arguments):
  listed = read_vulnerability_table(Path(arguments[0]).read_text(encoding='utf-8'))
  found, unknown = {}, set()
  for path in arguments[1:]:
    for package in json.loads(Path(path).read_text(encoding='utf-8'))['dependencies']:
      # pip-audit also lists packages about which the index has no information.
      if 'skip_reason' in package:
        unknown.add(package['name'])
        continue
      for vulnerability in package['vulns']:
        ids = {vulnerability['id'], *vulnerability.get('aliases', ())}
        found.setdefault((package['name'].lower(), package['version']), []).append(ids)
  new = [(pin, ids) for pin, vulnerabilities in sorted(found.items()) for ids in vulnerabilities
         if not listed.get(pin, set()) & {ALL, *ids}]
  for (name, version), ids in new:
    print('not in SECURITY.md: {} {}: {}'.format(name, version, ', '.join(sorted(ids))))
  if unknown:
    names = sorted(unknown)
    print('the index has no information about {} package(s): {}{}'.format(
      len(names), ', '.join(names[:5]), ', ...' if len(names) > 5 else ''))
  print('vulnerabilities: {} in {} pins, {} of them not in SECURITY.md'.format(
    sum(map(len, found.values())), len(found), len(new)))
  return 1 if new else 2 if unknown else 0


def read_vulnerability_table(text):
  """Returns the vulnerability ids of each (package, version) in the table; ALL matches any id."""
  table = text.partition('<!-- findings: begin -->')[2].partition('<!-- findings: end -->')[0]
  listed = {}
  for line in table.splitlines():
    cells = [cell.strip() for cell in line.strip('| ').split('|')]
    if len(cells) < 5 or cells[0] in ('package', '---'):
      continue
    for version in re.findall(r'[0-9][\w.]*', cells[1]):
      listed.setdefault((cells[0].lower(), version), set()).update(
        re.findall(r'\w[\w-]+', cells[2]))
  return listed


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))

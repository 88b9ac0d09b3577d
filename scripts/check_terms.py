"""Finds words that are not terms of the project: see the TERMS below for the replacements.

  PYTHON scripts/check_terms.py [PATH...]

Checks the given files and folders, or by default the package, the documentation and the messages of
the commits after LAST_UNCHECKED_COMMIT. Prints the location of each such word and the term to use,
and exits with 1 if there is any.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKED = ('estimator_train', 'scripts', 'docs', 'deploy', 'README.md', 'CONTRIBUTING.md',
           'SECURITY.md', 'tests/benchmarks')
SUFFIXES = ('.py', '.md', '.flags', '.html', '.sh', '.yaml')
# Messages of commits after this one are checked.
LAST_UNCHECKED_COMMIT = '14a1eb3e6f'
# (regular expression, replacement). Matches whole words; an underscore ends a word, so that the
# parts of identifiers are checked, too.
TERMS = (
    ('class numbers?', 'class index'),
    ('gr[ae]y levels?', 'pixel value'),
    ('made[- _]up', 'synthetic'),
    ('Share', 'Shard'),
    (r'rounds?(?!\(|-trip|-robin)', 'epoch, pass, or repetition'),
    ('go on|goes on|going on|went on|gone on', 'resume, or continue'),
    ('mend(s|ed|ing)?', 'recover, or repair'),
    ('pass(ed|es|ing)?[ _]over', 'skip'),
    ("(?<!')bears?(?!')", 'retry'),  # In quotes, it is a class of CIFAR-100.
    ('(give|gives|giving|gave|given) out', 'run out of'),
    ('meeting', 'rendezvous'),
    ("(?<!['-])patience(?!')", 'timeout'),  # In quotes, it is a name in other programs.
    ('Noted', 'SignalState'),
    ('held(?![ _-]out)', 'pinned, or locked'),  # A held-out example is a term of statistics.
    ('offer(s|ed|ing)?', 'promote'),
    ('falls?|falling|fallen|fell', 'decays, or decreases'),
    ('reword(s|ed|ing)?', 'translate'),
    ('tells?|telling|told|says?|saying|said', 'log, print, report, or show'),
    ('Findings?(?=[(. ,:\\]])', 'CheckResult'),
    ('whole[- _]files?|aside', 'atomic write'),
    ('beside', 'next to, or the launcher'),
    ('planted', 'fault injection'),
    ('holes?', 'vulnerability'),
    ('floors', 'layers'),
    ('dead|gone', 'stale, obsolete, or missing'),
)
PATTERN = re.compile('|'.join('(?P<t{}>(?<![A-Za-z])(?:{})(?![A-Za-z]))'.format(index, words)
                              for index, (words, _) in enumerate(TERMS)))


def main(arguments):
  found = [line for path in _files(arguments or CHECKED)
           for line in _check(path, path.read_text(encoding='utf-8'))]
  if not arguments:
    found += _check_commits()
  for line in found:
    print(line)
  return int(bool(found))


def _files(names):
  for name in names:
    path = ROOT / name
    if path.is_dir():
      yield from sorted(file for file in path.rglob('*') if file.suffix in SUFFIXES)
    elif path.is_file():
      yield path


def _check(location, text):
  if Path(str(location)) == Path(__file__).resolve():
    return
  for number, line in enumerate(text.splitlines(), 1):
    for match in PATTERN.finditer(line):
      term = TERMS[int(match.lastgroup[1:])][1]
      yield '{}:{}: "{}": use {}'.format(location, number, match.group(), term)


def _check_commits():
  log = subprocess.run(['git', '-C', str(ROOT), 'log', '--format=%h%x00%B%x01',
                        LAST_UNCHECKED_COMMIT + '..HEAD'],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
  if log.returncode:
    print('commit messages are not checked: ' + log.stderr.strip(), file=sys.stderr)
    return
  for commit in filter(None, (part.strip() for part in log.stdout.split('\x01'))):
    name, _, message = commit.partition('\x00')
    yield from _check('commit ' + name, message)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))

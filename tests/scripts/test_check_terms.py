"""scripts/check_terms.py finds words that the project does not use."""

import subprocess
import sys

import pytest
from conftest import ROOT

SCRIPT = ROOT / 'scripts' / 'check_terms.py'


def check(path):
  done = subprocess.run([sys.executable, str(SCRIPT), str(path)], stdout=subprocess.PIPE,
                        universal_newlines=True, timeout=60)
  return done.returncode, done.stdout


@pytest.mark.parametrize('text, term', [
    ('the run goes on from step 5', 'resume'), ('it tells why', 'log, print'),
    ('told_as = 1', 'log, print'), ('class Share:', 'Shard'), ('a round of evaluation', 'epoch'),
    ('made-up images', 'synthetic'), ('passed_over = []', 'skip')])
def test_words_are_found_with_their_line(tmp_path, text, term):
  (tmp_path / 'x.md').write_text('A line.\n' + text + '\n')
  code, out = check(tmp_path / 'x.md')
  assert code == 1 and out.startswith('{}:2: '.format(tmp_path / 'x.md')) and term in out


def test_similar_words_are_no_findings(tmp_path):
  (tmp_path / 'x.py').write_text('round(1.5)\nrounding, shared, share, intelligent, offset\n')
  assert check(tmp_path / 'x.py') == (0, '')


def test_the_projects_own_text_has_none():
  done = subprocess.run([sys.executable, str(SCRIPT)], stdout=subprocess.PIPE,
                        universal_newlines=True, timeout=120)
  assert (done.returncode, done.stdout) == (0, '')

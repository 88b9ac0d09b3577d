"""Files that appear under their name only when they are whole."""

import json
import os
from typing import Any, Dict


def write_text(path: str, text: str) -> None:
  """Writes the text aside and renames it into place."""
  aside = '{}.{}.part'.format(path, os.getpid())
  try:
    with open(aside, 'w', encoding='utf-8') as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    os.replace(aside, path)
  except BaseException:
    if os.path.exists(aside):
      os.remove(aside)
    raise


def write_json(path: str, value: Dict[str, Any]) -> None:
  """Writes the value as JSON, a line a key; figures that are not finite are refused."""
  lines = ('{}: {}'.format(json.dumps(name), json.dumps(part, allow_nan=False))
           for name, part in value.items())
  write_text(path, '{\n  ' + ',\n  '.join(lines) + '\n}\n')

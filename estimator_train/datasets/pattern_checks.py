"""Finds what a pattern leaves out or matches by mistake.

The checks use the listings that expanding the pattern needs anyway.
"""

import collections
import glob
import itertools
import logging
import os
import re
from typing import Counter, Dict, Iterator, List, Sequence, Set, Tuple

from estimator_train.datasets.file_pattern import Listings
from estimator_train.errors import UserError, join_items, printable

_LOG = logging.getLogger('estimator_train')
_IMAGE_EXTENSIONS = frozenset((b'.jpg', b'.jpeg', b'.jpe', b'.jfif', b'.png', b'.gif', b'.bmp',
                               b'.webp', b'.tif', b'.tiff'))
_MAX_EXPLAINED_FILES = 10000
_SHARD_NAME = re.compile(br'(.*)-(\d{5})-of-(\d{5})(.*)', re.DOTALL)
# (folder and first part of the names, number of shards, last part of the names).
_ShardSet = Tuple[bytes, int, bytes]


def warn_about_unmatched_images(flag: str, files: Sequence[bytes], listings: Listings) -> None:
  """Logs a warning if a pattern leaves out images of other extensions, or whole folders."""
  counts = collections.Counter(
      extension for listing in listings.values() for extension in map(_extension, listing.others)
      if extension.lower() in _IMAGE_EXTENSIONS)
  if counts:
    for extension in set(map(_extension, files)):  # The other files of these are left out by name.
      counts.pop(extension, None)
  if counts:
    _LOG.warning('--%s leaves out %d images in the folders that it searches: %s', flag,
                 sum(counts.values()), _join_counts(counts))
  above = _folders_above(folder for folder, listing in listings.items() if listing.num_matched)
  without = [_display(folder) for folder, listing in listings.items()
             if not listing.num_matched and folder not in above and os.path.isdir(folder or b'.')
             and (not listing.others or counts.keys() & set(map(_extension, listing.others)))]
  if without:
    _LOG.warning('--%s matches no image in %d folder(s): %s', flag, len(without),
                 join_items(without))


def check_class_folders(flag: str, pattern: str, listings: Listings) -> None:
  """Checks the places of the folders whose names are the class names.

  Raises:
    UserError: images are next to the class folders.
  """
  folders = sorted((folder for folder, listing in listings.items() if listing.num_matched),
                   key=lambda folder: (folder.count(b'/'), folder))
  if len(folders) < 2:
    return
  if folders[0].rstrip(b'/') == os.fsencode(_fixed_folder(pattern)).rstrip(b'/'):
    raise UserError('images must not be next to the class folders',
                    '--{}={} matches {} image(s) in {}'.format(
                        flag, pattern, listings[folders[0]].num_matched, _display(folders[0])),
                    'give a pattern that excludes them, or all class names in --labels')
  by_name: Dict[bytes, List[bytes]] = collections.defaultdict(list)
  for folder in folders:
    by_name[os.path.basename(folder)].append(folder)
  same_name = [same for same in by_name.values() if len(same) > 1]
  for what, (first, second) in [
      ('class folders are at different depths', (folders[0], folders[-1]))] * (
          folders[0].count(b'/') < folders[-1].count(b'/')) + [
      ('{} class name(s) are of several folders'.format(len(same_name)), same[:2])
      for same in same_name[:1]]:
    _LOG.warning('%s, such as %s and %s: the class of an image is the name of its own folder',
                 what, _display(first), _display(second))


def check_shards(given: str, files: Sequence[bytes]) -> None:
  """Checks that files named as shards, `train-00000-of-00004`, are one complete set.

  Raises:
    UserError: there are several complete sets of the same name.
  """
  sets: Dict[_ShardSet, Set[int]] = collections.defaultdict(set)
  for path in files:
    match = _SHARD_NAME.fullmatch(path)
    if match:
      sets[match.group(1), int(match.group(3)), match.group(4)].add(int(match.group(2)))
  complete: Dict[bytes, bytes] = {}
  for shards, found in sets.items():
    missing = [path for path in (_shard_path(shards, index) for index in range(shards[1]))
               if not os.path.lexists(path)] if len(found) < shards[1] else []
    if missing:
      _LOG.warning('%d of %d shards are missing: %s', len(missing), shards[1],
                   join_items([_display(path) for path in missing]))
    elif complete.setdefault(shards[0], _pattern_of(shards)) != _pattern_of(shards):
      raise UserError('a pattern matches the same shards twice', '{} ({} and {})'.format(
          given, _display(complete[shards[0]]), _display(_pattern_of(shards))),
                      'give the pattern of one of them, or give them different names')
  if len(sets) > 1:
    _LOG.warning('a pattern matches %d sets of shards: %s', len(sets),
                 join_items([_display(_pattern_of(shards)) for shards in sets]))


def no_match_error(what: str, given: str, pattern: str, example: str) -> UserError:
  """Returns the error about a pattern that matches no file, which names the files that exist.

  Args:
    what: the rule.
    given: the flag with the pattern.
    pattern: the pattern.
    example: a pattern to propose if there is no better one.
  """
  escaped, folder = _escape_folders(pattern), _fixed_folder(pattern)
  if escaped != pattern:
    return UserError(what, given, 'give {!r}: brackets in a pattern are special'.format(escaped))
  while not os.path.isdir(folder or '.') and not os.path.isdir(os.path.dirname(folder) or '.'):
    folder = os.path.dirname(folder)
  if not os.path.isdir(folder or '.'):
    return UserError(what, '{} (there is no {})'.format(given, printable(folder)),
                     'correct the pattern')
  names = list(itertools.islice(_walk(folder or '.'), _MAX_EXPLAINED_FILES))
  counts = collections.Counter(extension for extension in map(_extension, names)
                               if extension.lower() in _IMAGE_EXTENSIONS)
  others = [_display(name) for name in names if _extension(name) not in counts]
  if counts:
    example = os.path.join(glob.escape(folder), '**', _pattern_of_extensions(counts))
  return UserError(what, '{} ({} has {})'.format(
      given, printable(folder or '.'),
      join_items([_join_counts(counts)] * bool(counts) + others) or 'no files'),
                   'give a pattern such as \'{}\', in quotes'.format(example))


def _escape_folders(pattern: str) -> str:
  """Returns a pattern with the brackets escaped in the names of folders that exist."""
  parts = pattern.split('/')
  return '/'.join([glob.escape(part) if '[' in part and os.path.isdir('/'.join(parts[:number]))
                   else part for number, part in enumerate(parts[:-1], 1)] + parts[-1:])


def _fixed_folder(pattern: str) -> str:
  """Returns the folder in the part of a pattern that has no special characters."""
  parts = pattern.split('/')
  fixed = list(itertools.takewhile(lambda part: not glob.has_magic(part), parts))
  folder = '/'.join(fixed) or '/' * pattern.startswith('/')
  return folder if len(fixed) < len(parts) or os.path.isdir(folder) else os.path.dirname(folder)


def _walk(folder: str) -> Iterator[bytes]:
  """Yields the names of the visible files in a folder and below."""
  for _, folders, names in os.walk(os.fsencode(folder)):
    folders[:] = sorted(name for name in folders if not name.startswith(b'.'))
    yield from sorted(name for name in names if not name.startswith(b'.'))


def _pattern_of_extensions(counts: Counter[bytes]) -> str:
  """Returns the last part of a pattern that matches the most frequent extension in any case."""
  extension = os.fsdecode(counts.most_common(1)[0][0])
  variants = [other for other in counts if os.fsdecode(other).lower() == extension.lower()]
  return '*' + (extension if len(variants) == 1 else ''.join(
      '[{}{}]'.format(letter.lower(), letter.upper()) if letter.isalpha() else letter
      for letter in extension))


def _folders_above(folders: Iterator[bytes]) -> Set[bytes]:
  above: Set[bytes] = set()
  for folder in folders:
    parent = os.path.dirname(folder)
    while parent not in above:
      above.add(parent)
      parent = os.path.dirname(parent)
  return above


def _shard_path(shards: _ShardSet, index: int) -> bytes:
  return b'%s-%05d-of-%05d%s' % (shards[0], index, *shards[1:])


def _pattern_of(shards: _ShardSet) -> bytes:
  return b'%s-*-of-%05d%s' % shards


def _extension(name: bytes) -> bytes:
  return os.path.splitext(name)[1]


def _join_counts(counts: Counter[bytes]) -> str:
  return ', '.join('{} {}'.format(count, _display(extension))
                   for extension, count in counts.most_common())


def _display(path: bytes) -> str:
  return printable(os.fsdecode(path or b'.'))

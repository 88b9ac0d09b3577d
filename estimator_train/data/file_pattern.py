"""Expands file patterns, and finds what a pattern leaves out or matches by mistake.

`*`, `?` and `[...]` match within a name, `**` any number of folders. A pattern that is the path of
a folder stands for the files of one kind in this folder and all folders in it.
"""

import collections
import fnmatch
import glob
import itertools
import logging
import os
import re
from typing import Callable, Counter, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from estimator_train.errors import UserError, join_items, printable

_LOG = logging.getLogger('estimator_train')
_IMAGE_EXTENSIONS = frozenset((b'.jpg', b'.jpeg', b'.jpe', b'.jfif', b'.png', b'.gif', b'.bmp',
                               b'.webp', b'.tif', b'.tiff', b'.heic', b'.heif', b'.avif', b'.jp2',
                               b'.jxl', b'.ppm', b'.pgm'))
_DECODABLE_EXTENSIONS = (b'.jpg', b'.jpeg', b'.jpe', b'.jfif', b'.png', b'.gif')
_ARCHIVE_EXTENSIONS = (b'.zip', b'.tar', b'.tgz', b'.tar.gz', b'.tar.bz2', b'.tar.xz', b'.7z',
                       b'.rar')
_DESCRIPTION_EXTENSIONS = (b'.txt', b'.json')  # Such as labels.txt, next to TFRecord files.
_MAX_FILES_IN_ERROR = 10000
_SHARD_NAME = re.compile(br'(.*)-(\d{5})-of-(\d{5})(.*)', re.DOTALL)
_ShardSet = Tuple[bytes, int, bytes]  # The names up to the numbers, the number of shards, the rest.


class Listing(NamedTuple):
  """The files of a folder in which the patterns of a flag search files.

  Attributes:
    num_matched: the number of files that match.
    others: the names of the files that match no pattern.
  """
  num_matched: int
  others: List[bytes]


Listings = Dict[bytes, Listing]  # By the path of the folder.


def is_image(name: bytes) -> bool:
  """Returns whether a file name has the extension, in any case, of images that can be decoded."""
  return name.lower().endswith(_DECODABLE_EXTENSIONS)


def may_be_image(name: bytes) -> bool:
  """Returns whether a file name has the extension of images, also of those of other formats."""
  return _extension(name).lower() in _IMAGE_EXTENSIONS


def may_be_records(name: bytes) -> bool:
  """Returns whether a file in a folder of TFRecord files is one, by its name."""
  return not name.lower().endswith(_DESCRIPTION_EXTENSIONS)


def split_patterns(patterns: str) -> List[str]:
  """Returns patterns that are separated by commas; commas in existing paths do not separate."""
  if ',' not in patterns or os.path.isdir(patterns) or any(iter_files(patterns)):
    return [patterns]
  parts, split = patterns.split(','), []
  while parts:
    heads = [','.join(parts[:count]) for count in range(len(parts), 0, -1)]
    split.append(next(filter(os.path.exists, heads), parts[0]))
    del parts[:split[-1].count(',') + 1]
  return [pattern for pattern in split if pattern]


def iter_files(pattern: str, listings: Optional[Listings] = None,
               is_wanted: Callable[[bytes], bool] = is_image) -> Iterator[bytes]:
  """Yields the matching files, in the same order on every machine.

  As with `glob`, a name that starts with a dot is matched only by a pattern that starts with a dot.
  Unlike with `glob`, `**` does not enter a folder again during the search inside that folder, even
  if a symbolic link leads back to the folder.

  Args:
    pattern: a pattern such as `data/train/**/*.jpeg`, or the path of a folder.
    listings: gets the listing of each folder that is searched. All patterns of a flag share one.
    is_wanted: if a pattern is a folder: whether a file of this name is one of its files.

  Yields:
    The paths, as bytes because file names need not be valid text.

  Raises:
    UserError: a folder cannot be listed.
  """
  if os.path.isfile(pattern):  # Even if its name has characters that are special in patterns.
    yield os.fsencode(pattern)
    return
  is_folder = os.path.isdir(pattern)
  parts = [part for part in os.fsencode(
      glob.escape(pattern) + '/**' if is_folder else pattern).split(b'/') if part]
  if parts and parts[-1] == b'**':
    parts.append(b'*')
  # A pattern with several `**` can match a file in several ways. Such a file is yielded once.
  seen: Optional[Set[bytes]] = set() if parts.count(b'**') > 1 else None
  root = b'/' if pattern.startswith('/') else b''
  for folder, found, unmatched in _iter_matches(root, parts, ()):
    names = list(filter(is_wanted, found)) if is_folder else found
    if listings is not None and unmatched is not None:
      others = set(unmatched).union(found).difference(names)
      before = listings.get(folder)
      listings[folder] = Listing(
          len(names) + (before.num_matched if before else 0),
          sorted(others.intersection(before.others) if before else others))
    for path in (os.path.join(folder, name) for name in names):
      if seen is None or path not in seen:
        yield path
        if seen is not None:
          seen.add(path)


def warn_about_unmatched_images(flag: str, files: List[bytes], listings: Listings) -> None:
  """Logs a warning if a pattern leaves out images of other extensions, or whole folders."""
  # Other files with the extensions of matched files are left out on purpose.
  matched = set(map(_extension, files))
  counts = _count_images(extension for listing in listings.values()
                         for extension in map(_extension, listing.others)
                         if extension not in matched)
  if counts:
    _LOG.warning('--%s leaves out %d images in the folders that it searches: %s', flag,
                 sum(counts.values()), _join_counts(counts))
  above: Set[bytes] = set()
  for path in (folder for folder, listing in listings.items() if listing.num_matched):
    parent = path
    while parent not in (b'', b'/'):
      parent = os.path.dirname(parent)
      above.add(parent)
  without = [_display(folder) for folder, listing in listings.items()
             if not listing.num_matched and folder not in above and os.path.isdir(folder or b'.')
             and (not listing.others or counts.keys() & set(map(_extension, listing.others)))]
  if without:
    _LOG.warning('--%s matches no image in %d folder(s): %s', flag, len(without),
                 join_items(without))


def check_no_archives(location: str, files: List[bytes]) -> None:
  """Raises a UserError if all files of a pattern, which is at a location, are archives."""
  if files and all(name.lower().endswith(_ARCHIVE_EXTENSIONS) for name in files):
    raise UserError('an archive is not read', '{} ({})'.format(
        location, join_items(list(map(_display, files)))), 'unpack it, and give the folder')


def check_class_folders(flag: str, pattern: str, files: List[bytes]) -> None:
  """Checks the places of the folders whose names are the class names.

  Args:
    flag: the name of the flag.
    pattern: one of its patterns.
    files: those that match this pattern.

  Raises:
    UserError: images are next to the class folders.
  """
  counts = collections.Counter(os.path.dirname(path) for path in files)
  folders = sorted(counts, key=lambda folder: (folder.count(b'/'), folder))
  if len(folders) < 2:
    return
  if folders[0].rstrip(b'/') == os.fsencode(fixed_folder(pattern)).rstrip(b'/'):
    raise UserError('images must not be next to the class folders',
                    '--{}={} matches {} image(s) in {}'.format(
                        flag, pattern, counts[folders[0]], _display(folders[0])),
                    'give a pattern that excludes them, or all class names in --labels')

  def warn(what: str, first: bytes, second: bytes) -> None:
    _LOG.warning('%s, such as %s and %s: the class of an image is the name of its own folder',
                 what, _display(first), _display(second))

  if folders[0].count(b'/') < folders[-1].count(b'/'):
    warn('class folders are at different depths', folders[0], folders[-1])
  by_name: Dict[bytes, List[bytes]] = collections.defaultdict(list)
  for folder in folders:
    by_name[os.path.basename(folder)].append(folder)
  same_name = [same for same in by_name.values() if len(same) > 1]
  if same_name:
    warn('{} class name(s) are of several folders'.format(len(same_name)), *same_name[0][:2])


def check_shards(location: str, files: List[bytes]) -> None:
  """Checks that files named as shards, `train-00000-of-00004`, are one complete set.

  Raises:
    UserError: there are several complete sets of the same name. The message has the location.
  """
  sets: Dict[_ShardSet, Set[int]] = collections.defaultdict(set)
  for path in files:
    match = _SHARD_NAME.fullmatch(path)
    if match:
      sets[match.group(1), int(match.group(3)), match.group(4)].add(int(match.group(2)))
  complete: Dict[bytes, bytes] = {}
  for shards, found in sets.items():
    start, count, rest = shards
    paths = [b'%s-%05d-of-%05d%s' % (start, index, count, rest) for index in range(count)]
    missing = [path for path in paths
               if not os.path.lexists(path)] if len(found) < count else []
    if missing:
      _LOG.warning('%d of %d shards are missing: %s', len(missing), count,
                   join_items([_display(path) for path in missing]))
    elif complete.setdefault(start, _pattern_of(shards)) != _pattern_of(shards):
      raise UserError('a pattern matches the same shards twice', '{} ({} and {})'.format(
          location, _display(complete[start]), _display(_pattern_of(shards))),
                      'give the pattern of one of them, or give them different names')
  if len(sets) > 1:
    _LOG.warning('a pattern matches %d sets of shards: %s', len(sets),
                 join_items([_display(_pattern_of(shards)) for shards in sets]))


def no_match_error(what: str, location: str, pattern: str, example: str) -> UserError:
  """Returns the error about a pattern that matches no file, which names the files that exist.

  Args:
    what: the rule.
    location: what gives the pattern, such as a flag and its value.
    pattern: the pattern.
    example: a pattern to propose if there is no better one.
  """
  folder, parts = fixed_folder(pattern), pattern.split('/')
  # With the brackets escaped in the names of folders that exist.
  escaped = '/'.join([
      glob.escape(part) if '[' in part and os.path.isdir('/'.join(parts[:number])) else part
      for number, part in enumerate(parts[:-1], 1)] + parts[-1:])
  if escaped != pattern:
    return UserError(what, location, 'give {!r}: brackets in a pattern are special'.format(escaped))
  while not os.path.isdir(folder or '.') and not os.path.isdir(os.path.dirname(folder) or '.'):
    folder = os.path.dirname(folder)
  if os.path.isfile(folder):
    return UserError(what, '{} ({} is a file)'.format(location, printable(folder)),
                     'give a pattern of files in a folder; unpack an archive')
  if not os.path.isdir(folder or '.'):
    return UserError(what, '{} (there is no {})'.format(location, printable(folder)),
                     'correct the pattern')
  names = list(itertools.islice(_walk(folder or '.'), _MAX_FILES_IN_ERROR))
  counts = _count_images(map(_extension, names))
  found = [_join_counts(counts)] if counts else []
  if counts:
    ((extension, _),) = counts.most_common(1)
    example = os.path.join(glob.escape(folder), '**', '*' + os.fsdecode(extension))
  found += [_display(name) for name in names if _extension(name) not in counts]
  return UserError(what, '{} ({} has {})'.format(
      location, printable(folder or '.'), join_items(found) or 'no files'),
                   'give a pattern such as \'{}\', in quotes'.format(example))


def _iter_matches(folder: bytes, parts: List[bytes], ancestors: Tuple[bytes, ...]) -> Iterator[
    Tuple[bytes, List[bytes], Optional[List[bytes]]]]:
  """Yields (folder, names, other names) of the files in a folder that match the parts of a pattern.

  The other names, of files that do not match, are None if the last part has no wildcard.
  `**` does not enter one of the `ancestors`, real paths, again: loops of symbolic links end.
  """
  if not parts:
    return
  part, rest = parts[0], parts[1:]
  if not glob.has_magic(part):
    path = os.path.join(folder, part)
    if rest:
      yield from _iter_matches(path, rest, ancestors)
    elif os.path.lexists(path) and not os.path.isdir(path):
      yield folder, [part], None
  elif part == b'**':
    yield from _iter_matches(folder, rest, ancestors)
    ancestors_below = ancestors + (os.path.realpath(folder),)
    for name in _list_names(folder, b'*', list_folders=True):
      path = os.path.join(folder, name)
      if os.path.realpath(path) not in ancestors_below:
        yield from _iter_matches(path, parts, ancestors_below)
  elif rest:
    for name in _list_names(folder, part, list_folders=True):
      yield from _iter_matches(os.path.join(folder, name), rest, ancestors)
  else:
    others: List[bytes] = []
    yield folder, _list_names(folder, part, list_folders=False, others=others), others


def _list_names(folder: bytes, part: bytes, list_folders: bool,
                others: Optional[List[bytes]] = None) -> List[bytes]:
  """Returns the sorted names in a folder that match `part`, a name in a pattern.

  The names are those of folders if `list_folders` is set, else those of files. Names that do not
  match are added to `others`.
  """
  try:
    with os.scandir(folder or b'.') as entries:
      names = [entry.name for entry in entries
               if _is_folder(entry) == list_folders
               and (part.startswith(b'.') or not entry.name.startswith(b'.'))]
    found = sorted(name for name in names if fnmatch.fnmatchcase(name, part))
    if others is not None and len(found) < len(names):
      others.extend(sorted(set(names).difference(found)))
    return found
  except (FileNotFoundError, NotADirectoryError):
    return []
  except OSError as error:
    raise UserError('a folder cannot be listed',
                    '{} ({})'.format(os.fsdecode(folder or b'.'), error.strerror),
                    'make it readable, or give a pattern that does not include it') from error


def _is_folder(entry: 'os.DirEntry[bytes]') -> bool:
  """Returns whether an entry is a folder; a link that leads nowhere or to itself is a file."""
  return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def fixed_folder(pattern: str) -> str:
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


def _pattern_of(shards: _ShardSet) -> bytes:
  return b'%s-*-of-%05d%s' % shards


def _extension(name: bytes) -> bytes:
  return os.path.splitext(name)[1]


def _count_images(extensions: Iterator[bytes]) -> Counter[bytes]:
  """Counts the extensions of images; those that differ in case are counted separately."""
  return collections.Counter(extension for extension in extensions
                             if extension.lower() in _IMAGE_EXTENSIONS)


def _join_counts(counts: Counter[bytes]) -> str:
  return ', '.join('{} {}'.format(count, _display(extension))
                   for extension, count in counts.most_common())


def _display(path: bytes) -> str:
  return printable(os.fsdecode(path or b'.'))

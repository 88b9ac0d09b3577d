"""Expands file patterns, and finds files that a pattern leaves out or matches by mistake.

`*`, `?` and `[...]` match within a name. `**` matches any number of folders. A pattern that is the
path of a folder stands for the files of one kind in this folder and all of its subfolders.
"""

import collections
import difflib
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
# Archives of macOS contain this folder of hidden files next to the folder of the data.
_MACOS_FOLDER = b'__MACOSX'
# The extensions of files that describe the TFRecord files next to them, such as labels.txt.
_DESCRIPTION_EXTENSIONS = (b'.txt', b'.json')
_MAX_FILES_IN_ERROR = 10000
_RECORDS_NAME = re.compile(br'.*(\.tfrecords?(\.gz)?$|-\d{5}-of-\d{5})', re.DOTALL | re.IGNORECASE)
_SHARD_NAME = re.compile(br'(.*)-(\d{5})-of-(\d{5})(.*)', re.DOTALL)
# A set of shards: the part of their names before the numbers, the number of shards, and the part
# after the numbers.
_ShardSet = Tuple[bytes, int, bytes]


class FolderListing(NamedTuple):
  """The files of a folder that the patterns of a flag search.

  Attributes:
    num_matched: the number of files that match a pattern.
    unmatched: the names of the files that match no pattern.
  """
  num_matched: int
  unmatched: List[bytes]


FolderListings = Dict[bytes, FolderListing]  # By the path of the folder.


def is_image(name: bytes) -> bool:
  """Returns whether a file name has the extension of an image format that can be decoded."""
  return name.lower().endswith(_DECODABLE_EXTENSIONS)


def may_be_image(name: bytes) -> bool:
  """Returns whether a file name has the extension of any image format."""
  return _extension(name).lower() in _IMAGE_EXTENSIONS


def may_be_records(name: bytes) -> bool:
  """Returns whether a file name may be that of a TFRecord file."""
  return not name.lower().endswith(_DESCRIPTION_EXTENSIONS)


def has_name_of_records(name: bytes) -> bool:
  """Returns whether a file has the extension of TFRecord files, or is named like a shard."""
  return bool(_RECORDS_NAME.match(name))


def describe_files(folder: str) -> str:
  """Returns how many images of each extension a folder has, and the names of its other files."""
  names = list(itertools.islice(_iter_visible_names(folder or '.'), _MAX_FILES_IN_ERROR))
  counts = _count_images_by_extension(map(_extension, names))
  existing = [_join_extension_counts(counts)] if counts else []
  existing += [_printable_path(name) for name in names if _extension(name) not in counts]
  return join_items(existing) or 'no files'


def split_patterns(patterns: str) -> List[str]:
  """Splits a text into patterns at commas, except for commas in the paths of existing files."""
  if ',' not in patterns or os.path.isdir(patterns) or any(iter_files(patterns)):
    return [patterns]
  parts, patterns_found = patterns.split(','), []
  while parts:
    candidates = [','.join(parts[:count]) for count in range(len(parts), 0, -1)]
    patterns_found.append(next(filter(os.path.exists, candidates), parts[0]))
    del parts[:patterns_found[-1].count(',') + 1]
  return [pattern for pattern in patterns_found if pattern]


def iter_files(pattern: str, listings: Optional[FolderListings] = None,
               is_wanted: Callable[[bytes], bool] = is_image) -> Iterator[bytes]:
  """Yields the matching files, in the same order on every machine.

  As in `glob`, only a pattern that starts with a dot matches a name that starts with a dot. Unlike
  in `glob`, a symbolic link that leads back to a folder causes no endless search: `**` does not
  enter a folder while it searches inside that folder.

  Args:
    pattern: a pattern such as `data/train/**/*.jpeg`, or the path of a folder.
    listings: a dict to which the listing of each searched folder is added. All patterns of a flag
      share one dict.
    is_wanted: takes the name of a file in a folder, and returns whether to yield the file. It is
      used only if the pattern is the path of a folder.

  Yields:
    The paths. They are bytes, because file names need not be valid text.

  Raises:
    UserError: a folder cannot be listed.
  """
  if os.path.isfile(pattern):  # The name may have characters that are special in patterns.
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
  for folder, matches, non_matches in _iter_matches(root, parts, ()):
    names = list(filter(is_wanted, matches)) if is_folder else matches
    if listings is not None and non_matches is not None:
      unmatched = set(non_matches).union(matches).difference(names)
      earlier = listings.get(folder)
      listings[folder] = FolderListing(
          len(names) + (earlier.num_matched if earlier else 0),
          sorted(unmatched.intersection(earlier.unmatched) if earlier else unmatched))
    for path in (os.path.join(folder, name) for name in names):
      if seen is None or path not in seen:
        yield path
        if seen is not None:
          seen.add(path)


def warn_about_unmatched_images(flag: str, files: List[bytes], listings: FolderListings) -> None:
  """Logs a warning if the patterns of a flag leave out folders, or images of some extensions."""
  # If some files with an extension match, the others with this extension are left out on purpose.
  matched_extensions = set(map(_extension, files))
  counts = _count_images_by_extension(extension for listing in listings.values()
                                      for extension in map(_extension, listing.unmatched)
                                      if extension not in matched_extensions)
  if counts:
    _LOG.warning('--%s leaves out %d images in the folders that it searches: %s', flag,
                 sum(counts.values()), _join_extension_counts(counts))
  ancestors: Set[bytes] = set()  # The folders above those that have matching files.
  for path in (folder for folder, listing in listings.items() if listing.num_matched):
    parent = path
    while parent not in (b'', b'/'):
      parent = os.path.dirname(parent)
      ancestors.add(parent)
  left_out = [_printable_path(folder) for folder, listing in listings.items()
              if not listing.num_matched and folder not in ancestors
              and os.path.isdir(folder or b'.')
              and (not listing.unmatched
                   or counts.keys() & set(map(_extension, listing.unmatched)))]
  if left_out:
    _LOG.warning('--%s matches no image in %d folder(s): %s', flag, len(left_out),
                 join_items(left_out))


def check_no_archives(location: str, files: List[bytes]) -> None:
  """Raises a UserError if all files that match a pattern are archives.

  Args:
    location: the origin of the pattern, for the message, such as a flag and its value.
  """
  if files and all(name.lower().endswith(_ARCHIVE_EXTENSIONS) for name in files):
    raise UserError('an archive is not read', '{} ({})'.format(
        location, join_items(list(map(_printable_path, files)))), 'unpack it, and give the folder')


def check_class_folders(flag: str, pattern: str, files: List[bytes]) -> None:
  """Checks the folders whose names become the class names. Logs a warning if they look wrong.

  Args:
    pattern: one of the patterns in the value of the flag.
    files: the files that match this pattern.

  Raises:
    UserError: images are next to the class folders.
  """
  counts = collections.Counter(os.path.dirname(path) for path in files)
  folders = sorted(counts, key=lambda folder: (folder.count(b'/'), folder))
  if len(folders) < 2:
    return
  if folders[0].rstrip(b'/') == os.fsencode(folder_before_wildcards(pattern)).rstrip(b'/'):
    raise UserError('images must not be next to the class folders',
                    '--{}={} matches {} image(s) in {}'.format(
                        flag, pattern, counts[folders[0]], _printable_path(folders[0])),
                    'give a pattern that excludes them, or all class names in --labels')

  def log_warning(what: str, first: bytes, second: bytes) -> None:
    _LOG.warning('%s, such as %s and %s: the class of an image is the name of its own folder',
                 what, _printable_path(first), _printable_path(second))

  if folders[0].count(b'/') < folders[-1].count(b'/'):
    log_warning('class folders are at different depths', folders[0], folders[-1])
  by_name: Dict[bytes, List[bytes]] = collections.defaultdict(list)
  for folder in folders:
    by_name[os.path.basename(folder)].append(folder)
  same_name = [same for same in by_name.values() if len(same) > 1]
  if same_name:
    log_warning('{} class name(s) are of several folders'.format(len(same_name)), *same_name[0][:2])


def check_shards(location: str, files: List[bytes]) -> None:
  """Checks that files named like shards, such as `train-00000-of-00004`, are one complete set.

  Logs a warning if shards are missing, or if there are several sets.

  Args:
    location: the origin of the pattern, for the message, such as a flag and its value.

  Raises:
    UserError: several complete sets have the same name.
  """
  sets: Dict[_ShardSet, Set[int]] = collections.defaultdict(set)
  for path in files:
    match = _SHARD_NAME.fullmatch(path)
    if match:
      sets[match.group(1), int(match.group(3)), match.group(4)].add(int(match.group(2)))
  complete: Dict[bytes, bytes] = {}  # The pattern of a complete set, by the prefix of its names.
  for shard_set, indices in sets.items():
    prefix, count, suffix = shard_set
    paths = [b'%s-%05d-of-%05d%s' % (prefix, index, count, suffix) for index in range(count)]
    missing = [path for path in paths
               if not os.path.lexists(path)] if len(indices) < count else []
    if missing:
      _LOG.warning('%d of %d shards are missing: %s', len(missing), count,
                   join_items([_printable_path(path) for path in missing]))
      continue
    pattern = _shard_set_pattern(shard_set)
    if complete.setdefault(prefix, pattern) != pattern:
      raise UserError('a pattern matches the same shards twice', '{} ({} and {})'.format(
          location, _printable_path(complete[prefix]), _printable_path(pattern)),
                      'give the pattern of one of them, or give them different names')
  if len(sets) > 1:
    _LOG.warning('a pattern matches %d sets of shards: %s', len(sets),
                 join_items([_printable_path(_shard_set_pattern(shard_set)) for shard_set in sets]))


def make_no_match_error(rule: str, location: str, pattern: str, example: str) -> UserError:
  """Returns the error about a pattern that matches no file. It names the files that exist.

  Args:
    location: the origin of the pattern, such as a flag and its value.
    example: a pattern to propose if none can be derived from the files that exist.
  """
  folder, parts = folder_before_wildcards(pattern), pattern.split('/')
  # The pattern in which the brackets in the names of existing folders are escaped.
  escaped = '/'.join([
      glob.escape(part) if '[' in part and os.path.isdir('/'.join(parts[:count])) else part
      for count, part in enumerate(parts[:-1], 1)] + parts[-1:])
  if escaped != pattern:
    return UserError(rule, location, 'give {!r}: brackets in a pattern are special'.format(escaped))
  if not glob.has_magic(pattern) and os.path.isdir(folder or '.') and not os.path.lexists(pattern):
    similar = difflib.get_close_matches(os.path.basename(pattern), os.listdir(folder or '.'), 1)
    return UserError(rule, '{} (there is no {})'.format(location, printable(pattern)), ''.join(
        'did you mean {}? '.format(printable(os.path.join(folder, name))) for name in similar)
                     + 'give the path of a file or folder, or a pattern')
  while not os.path.isdir(folder or '.') and not os.path.isdir(os.path.dirname(folder) or '.'):
    folder = os.path.dirname(folder)
  if os.path.isfile(folder):
    return UserError(rule, '{} ({} is a file)'.format(location, printable(folder)),
                     'give a pattern of files in a folder; unpack an archive')
  if not os.path.isdir(folder or '.'):
    return UserError(rule, '{} (there is no {})'.format(location, printable(folder)),
                     'correct the pattern')
  counts = _count_images_by_extension(map(_extension, itertools.islice(
      _iter_visible_names(folder or '.'), _MAX_FILES_IN_ERROR)))
  if counts:
    ((extension, _),) = counts.most_common(1)
    example = os.path.join(glob.escape(folder), '**', '*' + os.fsdecode(extension))
  return UserError(rule, '{} ({} has {})'.format(
      location, printable(folder or '.'), describe_files(folder)),
                   'give a pattern such as \'{}\', in quotes'.format(example))


def _iter_matches(folder: bytes, parts: List[bytes], ancestors: Tuple[bytes, ...]) -> Iterator[
    Tuple[bytes, List[bytes], Optional[List[bytes]]]]:
  """Yields (folder, names that match, names that do not match) for each folder with files.

  The names that do not match are None if the last part of the pattern has no wildcard.

  Args:
    parts: the parts of the pattern below this folder.
    ancestors: the real paths of the folders above. `**` does not enter these folders again, so that
      a search ends even if symbolic links form a loop.
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
    non_matches: List[bytes] = []
    yield folder, _list_names(folder, part, False, non_matches), non_matches


def _list_names(folder: bytes, part: bytes, list_folders: bool,
                non_matches: Optional[List[bytes]] = None) -> List[bytes]:
  """Returns the sorted names of files or, if `list_folders`, of folders that match a pattern.

  Args:
    part: a part of a pattern, without slashes.
    non_matches: a list to which the names that do not match are added.
  """
  try:
    with os.scandir(folder or b'.') as entries:
      names = [entry.name for entry in entries
               if _is_folder(entry) == list_folders and entry.name != _MACOS_FOLDER
               and (part.startswith(b'.') or not entry.name.startswith(b'.'))]
    matches = sorted(name for name in names if fnmatch.fnmatchcase(name, part))
    if non_matches is not None and len(matches) < len(names):
      non_matches.extend(sorted(set(names).difference(matches)))
    return matches
  except (FileNotFoundError, NotADirectoryError):
    return []
  except OSError as error:
    raise UserError('a folder cannot be listed',
                    '{} ({})'.format(os.fsdecode(folder or b'.'), error.strerror),
                    'make it readable, or give a pattern that does not include it') from error


def _is_folder(entry: 'os.DirEntry[bytes]') -> bool:
  """Returns whether an entry is a folder. A link that leads nowhere or to itself is a file."""
  return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def folder_before_wildcards(pattern: str) -> str:
  """Returns the deepest folder in the part of a pattern before the first wildcard."""
  parts = pattern.split('/')
  fixed = list(itertools.takewhile(lambda part: not glob.has_magic(part), parts))
  folder = '/'.join(fixed) or '/' * pattern.startswith('/')
  return folder if len(fixed) < len(parts) or os.path.isdir(folder) else os.path.dirname(folder)


def _iter_visible_names(folder: str) -> Iterator[bytes]:
  """Yields the names of the visible files in a folder and its subfolders."""
  for _, folders, names in os.walk(os.fsencode(folder)):
    folders[:] = sorted(name for name in folders if not name.startswith(b'.'))
    yield from sorted(name for name in names if not name.startswith(b'.'))


def _shard_set_pattern(shard_set: _ShardSet) -> bytes:
  return b'%s-*-of-%05d%s' % shard_set


def _extension(name: bytes) -> bytes:
  return os.path.splitext(name)[1]


def _count_images_by_extension(extensions: Iterator[bytes]) -> Counter[bytes]:
  """Counts images by extension. Extensions that differ in case are counted separately."""
  return collections.Counter(extension for extension in extensions
                             if extension.lower() in _IMAGE_EXTENSIONS)


def _join_extension_counts(counts: Counter[bytes]) -> str:
  return ', '.join('{} {}'.format(count, _printable_path(extension))
                   for extension, count in counts.most_common())


def _printable_path(path: bytes) -> str:
  return printable(os.fsdecode(path or b'.'))

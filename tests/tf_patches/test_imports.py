import functools
import inspect
import subprocess
import sys

import pytest

from estimator_train.tf_patches import imports

DEADLINE_SECS = 120.


def test_training_imports_h5py_and_requests_only_when_they_are_used():
  code = '''
import sys
from estimator_train import modes
modes._import_mode('train')
assert not {'h5py', 'requests'} & {*sys.modules}, 'imported too early'
from tensorflow.python.keras import callbacks
from tensorflow.python.keras.saving import hdf5_format
import h5py
assert hdf5_format.h5py.File is h5py.File
assert callbacks.requests.Session is sys.modules['requests'].Session
'''
  subprocess.run([sys.executable, '-c', code], check=True, timeout=DEADLINE_SECS)


def test_a_module_used_during_the_import_is_the_module_itself(monkeypatch, tmp_path):
  (tmp_path / 'deferred_example.py').write_text('answer = 42\n', encoding='utf-8')
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.setattr(imports, '_DEFERRED_MODULES', ('deferred_example', 'module_not_installed'))
  with imports.accelerate_import():
    import deferred_example as proxy
    assert proxy.answer == 42
    with pytest.raises(ImportError):
      import module_not_installed  # noqa: F401
  import deferred_example
  assert type(deferred_example) is type(sys) and deferred_example.__dict__['answer'] == 42
  monkeypatch.delitem(sys.modules, 'deferred_example')


def test_getfullargspec_is_unchanged_except_for_its_speed():
  def example(first, second: int = 2, *rest: str, key: float, other=None, **options) -> bool:
    """Has all kinds of parameters."""

  def key_only(*, key=1):
    return key

  @functools.wraps(example)
  def wrapper(*args):
    return example(*args)

  def with_signature():
    """Declares another signature."""

  with_signature.__signature__ = inspect.signature(example)
  original = inspect.getfullargspec
  with imports.accelerate_import():
    assert inspect.getfullargspec is not original
    for function in (example, key_only, wrapper, with_signature, lambda: None, inspect.signature,
                     len, imports._DeferredModule, imports._DeferredModule.__getattr__,
                     'text'.format, functools.partial(example, 1)):
      try:
        expected = original(function)
      except TypeError:
        with pytest.raises(TypeError):
          inspect.getfullargspec(function)
      else:
        assert inspect.getfullargspec(function) == expected
    inspect.getfullargspec(key_only).kwonlydefaults.clear()
    assert key_only() == 1
  assert inspect.getfullargspec is original

"""The watch over steps that do not end, under a clock that is given to it."""

from estimator_train.training.hooks import watchdog

now, is_waiting = [0.], [False]


def make(timeout_secs=10):
  return watchdog.StepWatchdog(timeout_secs, lambda: is_waiting[0], None, lambda: now[0])


def times_out_at(hook, secs, waits=False):
  now[0], is_waiting[0] = secs, waits
  return hook.has_timed_out()


def test_the_creation_of_the_session_and_each_step_are_limited(monkeypatch):
  monkeypatch.setattr(watchdog, '_POLL_SECS', 1000.)
  hook, endless = make(), make(float('inf'))
  now[0] = 100.
  hook.begin()
  assert [times_out_at(hook, secs) for secs in (110., 110.1)] == [False, True]
  hook.after_create_session(None, None)
  assert not times_out_at(hook, 200.)
  hook.before_run(None)
  assert [times_out_at(hook, secs) for secs in (210., 210.1)] == [False, True]
  assert not times_out_at(hook, 250., waits=True), 'the time starts anew'
  assert [times_out_at(hook, secs) for secs in (260., 260.1)] == [False, True]
  endless.before_run(None)
  hook.after_run(None, None)
  assert not times_out_at(hook, 1e9) and not times_out_at(endless, 1e9)
  hook.close()

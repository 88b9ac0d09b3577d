"""The end of a process although a thread hangs."""

from estimator_train.process import exit as exiting


def test_the_message_is_one_line_and_the_code_that_of_a_lost_task(monkeypatch, capsys):
  codes = []
  monkeypatch.setattr(exiting.os, '_exit', codes.append)
  exiting.exit_now('lost worker 1:\nits connection ended')
  assert codes == [138] and capsys.readouterr().err == 'lost worker 1: its connection ended\n'

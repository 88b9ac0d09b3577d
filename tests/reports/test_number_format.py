"""Numbers and names in pictures and tables."""

from estimator_train.reports import charts, number_format


def test_labels_in_pictures():
  for text, expected in (
      ('T-shirt/top', 'T-shirt/top'), ('$a$', r'\$a\$'), (' a\n b', 'a b'),
      ('x' * 40, 'x' * 17 + '…'), ('视网膜', 'class 1'), ('\udcff', 'class 1'), ('', 'class 1'),
      ('a\u202eb', 'class 1')):
    assert charts.format_tick_label(text, 'class 1') == expected


def test_numbers_have_as_many_digits_as_they_are_worth():
  for value, number, secs in (
      (1842.35, '1,842', '1,842\u00a0s'), (0.0703, '0.0703', '70.3\u00a0ms'),
      (0.09101, '0.0910', '91.0\u00a0ms'), (0.000124, '0.000124', '124\u00a0µs'),
      (99.97, '100', '100\u00a0s'), (3, '3', '3\u00a0s'), (0, '0', '0\u00a0s'), (None, '–', '–'),
      (float('nan'), '–', '–')):
    assert number_format.format_number(value) == number
    assert number_format.format_secs(value) == secs

"""Cells of CSV files that spreadsheets would take for formulas."""

import pytest

from estimator_train.files.csv_cells import format_cell


@pytest.mark.parametrize('value', [
    '=1+1', '+1-1', '-2+3+cmd|\' /C calc\'!A0', '@SUM(A1)', '\t=1', '\r=1', '\uff1d1', '-x',
    '--flag'])
def test_formulas_become_text(value):
  assert format_cell(value) == "'" + value


@pytest.mark.parametrize('value', [
    -0.5, 3, None, True, '-0.5', '+7', '-1e-05', '-inf', '', '-', 'a=b', ' =1', "'=1", 'x.png'])
def test_numbers_and_other_text_stay(value):
  assert format_cell(value) is value

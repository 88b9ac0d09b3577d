"""Results are the dicts that they were, and objects with attributes that editors complete."""

import copy
import json
import pickle
from contextlib import ExitStack

import pytest

from estimator_train.errors import UserError
from estimator_train.library import results

VALUES = {'mode': 'train', 'model_dir': 'runs/<x>', 'global_step': 20, 'accuracy': 1 / 3,
          'best': {'accuracy': .5, 'of': [{'a': 1}]}, 'points': list(range(1000)), 'items': 7}


def test_a_result_is_a_dict():
  result = results.TrainingResult(VALUES)
  assert result == VALUES and json.loads(json.dumps(result)) == VALUES and {**result} == VALUES
  assert result['accuracy'] == result.get('accuracy') == result.accuracy
  assert result.best.of[0].a == 1 and list(result) == list(VALUES)
  assert result['items'] == 7 and dict(result.items()) == VALUES  # Methods of dict stay.
  for other in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
    assert other == result and type(other) is results.TrainingResult
  plain = result.to_dict()
  assert plain == VALUES
  assert {type(plain), type(plain['best']), type(plain['best']['of'][0])} == {dict}
  assert {'accuracy', 'best', 'to_dict', 'page'} <= set(dir(result))
  with pytest.raises(AttributeError, match="no value 'acc': it has mode, mod.*, page$"):
    print(result.acc)
  with pytest.raises(AttributeError):
    result.accuracy = 1


def test_the_text_of_a_result():
  prediction = results.Prediction({'label': 'a', 'probability': 1 / 3, 'top': [{'label': 'a'}]})
  assert repr(prediction) == "Prediction(label='a', probability=0.333333, top=[{'label': 'a'}])"
  assert repr(results.TrainingResult(VALUES)).splitlines() == [
      'TrainingResult(', "  mode='train',", "  model_dir='runs/<x>',", '  global_step=20,',
      '  accuracy=0.333333,', "  best={'accuracy': 0.5, 'of': [{'a': 1}]},",
      '  points=[... 1,000 items],', '  items=7)']


def test_in_a_notebook(tmp_path, monkeypatch):
  """A table with the figures, and a link to the page that Jupyter can open."""
  monkeypatch.chdir(str(tmp_path))
  result = results.TrainingResult(VALUES)
  assert result.page is None
  html = result._repr_html_()
  assert '>accuracy</td>' in html and '>0.3333</td>' in html and 'runs/&lt;x&gt;' in html
  assert 'points' not in html and 'href' not in html
  page = tmp_path / 'runs' / '<x>' / 'report' / 'index.html'
  page.parent.mkdir(parents=True)
  page.write_text('')
  assert result.page == 'runs/<x>/report/index.html'
  assert 'href="runs/&lt;x&gt;/report/index.html"' in result._repr_html_()
  evaluation = results.EvaluationResult(dict(VALUES, evaluation_dir='none'))
  assert evaluation.page is None
  assert results.ReportResult(dict(VALUES, page=str(page))).page == str(page)


def test_indices_of_predictions():
  batches = iter([[{'label': 'a'}, {'label': 'b'}], [{'label': 'c'}], [{'label': 'd'}]])
  predictions = results.Predictions(batches, ExitStack())
  assert predictions[0].label == predictions[0].label == 'a'
  assert next(batches) == [{'label': 'c'}]  # The index has computed only the first batch.
  assert next(predictions).label == 'a' and predictions[0].label == 'a'
  assert [each.label for each in predictions[1:]] == ['b', 'd'] and predictions[-1].label == 'd'
  assert [each.label for each in predictions] == ['b', 'd']
  with pytest.raises(IndexError):
    predictions[3]
  predictions = results.Predictions(iter([[{'label': 'a'}]]), ExitStack())
  assert next(predictions).label == 'a'
  with pytest.raises(UserError, match=r'^predictions are not kept .*: index list\(predict'):
    predictions[0]


@pytest.mark.parametrize('num_read', [0, 1, 3])
def test_predictions_release_the_model(num_read):
  released = []
  resources = ExitStack()
  resources.callback(released.append, 1)
  predictions = results.Predictions(iter([[{'label': 'a'}, {'label': 'b'}], [], [{'label': 'c'}]]),
                                    resources)
  assert [next(predictions).label for _ in range(num_read)] == list('abc')[:num_read]
  assert not released and 'list()' in repr(predictions)
  if num_read == 3:
    assert list(predictions) == []
  elif num_read == 1:
    predictions.close()
    assert list(predictions) == []
  else:
    del predictions
  assert released == [1]

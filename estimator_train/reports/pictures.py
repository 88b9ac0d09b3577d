"""Pictures of the steps' times, of the loss and of the accuracy."""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from estimator_train.reports import drawing, picture_of_classes, picture_of_scaling, words
from estimator_train.reports.classes import Classes
from estimator_train.reports.drawing import Picture
from estimator_train.reports.page_files import Files

STEP_TIME, HISTOGRAM, LOSS, ACCURACY = (
    'step-time.png', 'step-histogram.png', 'loss.png', 'accuracy.png')
# Times beyond so many medians lie outside of the picture, as one of them would flatten the rest.
_FAR = 4

Curve = List[Tuple[int, float]]


def draw(files: Files, classes: Optional[Classes]) -> Dict[str, Picture]:
  """Draws what there is something to draw of.

  Args:
    files: the run's.
    classes: those of its evaluation that are shown.

  Returns:
    The pictures by their names.
  """
  with drawing.style():
    drawn = [*_of_steps(files.steps, files.throughput), *_of_curves(files.curves)]
    if classes is not None:
      drawn.append(picture_of_classes.confusion_matrix(classes))
    if picture_of_scaling.series(files.scaling):
      drawn.append(picture_of_scaling.chart(files.scaling))
  return {picture.name: picture for picture in drawn}


def _of_steps(steps: Dict[str, Any], throughput: Dict[str, Any]) -> Iterator[Picture]:
  if steps.get('global_step'):
    yield _step_time(steps)
  if sum(steps.get('histogram', {}).get('counts', [])):
    yield _histogram(steps['histogram'], throughput.get('steady_step_secs', {}))


def _step_time(steps: Dict[str, Any]) -> Picture:
  number = np.array(steps['global_step'])
  means, longest = np.array(steps['mean_secs']), np.array(steps['max_secs'])
  median = float(np.median(means))
  factor, unit = words.secs_unit(median)
  figure, (axes,) = drawing.make_axes(300)
  one_each = np.array_equal(means, longest)
  if not one_each:
    axes.fill_between(number, means * factor, longest * factor, color=drawing.BLUE, alpha=0.2,
                      linewidth=0, label='up to the longest step')
  axes.plot(number, means * factor, color=drawing.BLUE, linewidth=1.2,
            marker='o' if len(number) == 1 else None,
            label='step time' if one_each else 'mean step time')
  top = max(_FAR * median, 1.1 * float(means.max()) if not one_each else 0)
  axes.set_ylim(0, factor * min(top, 1.1 * float(longest.max())))
  axes.set_xlabel('global step')
  axes.set_ylabel('step time ({})'.format(unit))
  # Above the axes: inside, it would hide steps.
  axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncol=2, borderaxespad=0.2)
  beyond = int(np.sum(longest > top))
  caption = 'Steady steps: without the warm-up, checkpoints and evaluations.'
  if beyond:
    caption += ' {} of {} points reach beyond the picture, up to {}.'.format(
        beyond, len(number), words.secs(longest.max()))
  return drawing.finish(
      figure, STEP_TIME, 'Line chart of the step time up to global step {}: mostly {}, at most {}, '
      'at the end {}.'.format(number[-1], words.secs(median), words.secs(longest.max()),
                              words.secs(means[-1])), caption)


def _histogram(histogram: Dict[str, Any], spread: Dict[str, Any]) -> Picture:
  edges, counts = np.array(histogram['edges_secs']), np.array(histogram['counts'])
  factor, unit = words.secs_unit(float(edges[counts.argmax() + 1]))
  figure, (axes,) = drawing.make_axes(300)
  axes.bar(edges[:-1] * factor, counts, np.diff(edges) * factor, align='edge',
           color=drawing.BLUE, alpha=0.75, edgecolor='white', linewidth=0.4)
  for name, color, dashes in (('p50', drawing.INK, '-'), ('p90', drawing.GREEN, '--'),
                              ('p99', drawing.RED, ':')):
    if words.is_number(spread.get(name)):
      axes.axvline(spread[name] * factor, color=color, linestyle=dashes,
                   label='{}: {}'.format(name, words.secs(spread[name])))
  if axes.get_legend_handles_labels()[0]:
    axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncol=3, borderaxespad=0.2)
  axes.set_xlabel('step time ({})'.format(unit))
  axes.set_ylabel('steps')
  axes.grid(False, axis='x')
  mode = int(counts.argmax())
  return drawing.finish(
      figure, HISTOGRAM, 'Histogram of the time of {:,} steps, from {} to {}: most, {:,}, take {} '
      'to {}.'.format(int(counts.sum()), words.secs(edges[0]), words.secs(edges[-1]),
                      int(counts[mode]), words.secs(edges[mode]), words.secs(edges[mode + 1])))


def _of_curves(curves: Dict[str, Any]) -> Iterator[Picture]:
  for what, name, unit, factor in (('loss', LOSS, '', 1.), ('accuracy', ACCURACY, ' (%)', 100.)):
    train, evaluated = (_points(curves.get(prefix + what)) for prefix in ('train_', 'eval_'))
    if train or evaluated:
      yield _curve(train, evaluated, what, name, unit, factor)


def _points(curve: Optional[Sequence[Tuple[int, Optional[float]]]]) -> Curve:
  return [(step, value) for step, value in curve or []
          if value is not None and words.is_number(value)]


def _curve(train: Curve, evaluated: Curve, what: str, name: str, unit: str,
           factor: float) -> Picture:
  figure, (axes,) = drawing.make_axes(300)
  alts = []
  for curve, whose, color, marker in ((train, 'training', drawing.BLUE, ''),
                                      (evaluated, 'evaluation', drawing.RED, 'o')):
    if curve:
      steps, values = zip(*curve)
      axes.plot(steps, np.array(values) * factor, color=color, label=whose,
                marker=marker or ('o' if len(curve) == 1 else None), markersize=4.5,
                linestyle='--' if marker else '-')
      shown = words.percent if unit else words.number
      alts.append('in {}, {} at step {}{}'.format(
          whose, shown(values[0]), steps[0],
          '' if len(curve) == 1 else ' to {} at step {}'.format(shown(values[-1]), steps[-1])))
  axes.set_xlabel('global step')
  axes.set_ylabel(what + unit)
  axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncol=2, borderaxespad=0.2)
  return drawing.finish(figure, name, 'Line chart of the {}: {}.'.format(what, '; '.join(alts)))

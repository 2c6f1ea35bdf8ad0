// Charts as SVG that scales like text: each has a name, takes its colours from the style, and stands beside a table of
// the same numbers. A point is {name, value, text}.
import {html} from './view.js';
import {number} from './words.js';

const WIDTH = 560, HEIGHT = 180, LEFT = 64, RIGHT = 12, TOP = 12, BOTTOM = 26;

// A scale from values to pixels, with a little room around them.
export function scale(values, from, to, zero = false) {
  const held = values.filter(Number.isFinite);
  let [low, high] = held.length ? [Math.min(...held), Math.max(...held)] : [0, 1];
  if (zero) low = Math.min(0, low);
  if (low === high) [low, high] = zero ? [0, 1] : [low - Math.abs(low || 1) * .1, high + Math.abs(high || 1) * .1];
  const room = (high - low) * (zero ? .05 : .12);
  [low, high] = [zero && low === 0 ? 0 : low - room, high + room];
  return Object.assign(value => from + (value - low) / (high - low) * (to - from), {low, high});
}

// Up to five round numbers within a scale: multiples of 1, 2, 2.5 or 5 of a power of ten.
function ticks({low, high}) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find(times => times * power >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({length: Math.floor(high / step + 1e-9) - first + 1}, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

// A tick whose text is empty is left out.
function Axis({y, show = number}) {
  return ticks(y).filter(tick => show(tick) !== '').map(tick => html`<g key=${tick}><line class="axis" x1=${LEFT} x2=${WIDTH - RIGHT} y1=${y(tick)} y2=${y(tick)} />
    <text x=${LEFT - 6} y=${y(tick) + 4} text-anchor="end">${show(tick)}</text></g>`);
}

// Values in their order: versions, or seconds. `series` are lists of numbers with the same number of places; `ends` are
// the texts below the first and the last.
export function LineChart({name, points, series, labels = true, zero = false, show, ends = []}) {
  const all = series ?? [points.map(point => point.value)];
  const count = Math.max(...all.map(line => line.length), 2);
  const x = scale([0, count - 1], LEFT + 14, WIDTH - RIGHT - 14);
  const across = at => LEFT + 14 + (WIDTH - RIGHT - LEFT - 28) * (count === 1 ? .5 : at / (count - 1));
  const y = scale(all.flat(), HEIGHT - BOTTOM, TOP, zero);
  const kinds = ['', 'second', 'third'];
  return html`<svg class="chart" role="img" aria-label=${name} viewBox="0 0 ${WIDTH} ${HEIGHT}">
    <${Axis} y=${y} show=${show} />
    ${all.map((line, at) => html`<path key=${at} class=${`line ${kinds[at]}`} d=${path(line, across, y)} />`)}
    ${ends.map((text, at) => html`<text key=${at} x=${across(at * (count - 1))} y=${HEIGHT - 8} text-anchor=${at ? 'end' : 'start'}>${text}</text>`)}
    ${points?.length <= 40 && points.map((point, at) => html`<g key=${point.name}>
      <circle class="dot" r="4" cx=${across(at)} cy=${y(point.value)} />
      ${labels && (points.length <= 8 || at === 0 || at === points.length - 1) && html`<text x=${across(at)} y=${HEIGHT - 8} text-anchor="middle">${point.name.split(':').pop()}</text>`}
    </g>`)}
  </svg>`;
}

function path(values, across, y) {
  let pen = 'M';
  return values.map((value, at) => {
    if (!Number.isFinite(value)) { pen = 'M'; return ''; }
    const step = `${pen}${across(at).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = 'L';
    return step;
  }).join('');
}

// Points with a fitted line: {x, y, kind?} in their own units, and the line's value at an x.
export function ScatterChart({name, points, line, show}) {
  const x = scale(points.map(point => point.x), LEFT + 8, WIDTH - RIGHT, true);
  const y = scale(points.map(point => point.y), HEIGHT - BOTTOM, TOP, true);
  return html`<svg class="chart" role="img" aria-label=${name} viewBox="0 0 ${WIDTH} ${HEIGHT}">
    <${Axis} y=${y} show=${show} />
    ${points.length > 0 && ticks(x).map(tick => html`<text key=${tick} x=${x(tick)} y=${HEIGHT - 8} text-anchor="middle">${number(tick)}</text>`)}
    ${points.map((point, at) => html`<circle key=${at} class=${`dot ${point.kind ?? ''}`} r="2.5" cx=${x(point.x)} cy=${y(point.y)} />`)}
    ${line && html`<path class="line second" d=${`M${x(x.low)} ${y(line(x.low))}L${x(x.high)} ${y(line(x.high))}`} />`}
  </svg>`;
}

// The regions of the live screen: each a chart over the last minutes and a table with the same figures in words.
import {html} from './view.js';
import {LineChart, ScatterChart} from './chart.js';
import {Region, Table} from './parts.js';
import {milliseconds, number, percent, t} from './words.js';

const nothing = () => '';
const whole = tick => Number.isInteger(tick) ? number(tick) : '';
const rounded = value => number(Math.round(value * 10) / 10);
const shown = (show, value) => Number.isFinite(value) ? show(value) : '–';

// `lines` are {label, key, show, isDrawn}; a drawn one has its colour beside its name.
function OverTime({name, history, model, lines, show, hint, facts = []}) {
  const read = lines.map(line => ({...line, values: history.line(model, line.key)}));
  const drawn = read.filter(line => line.isDrawn !== false);
  const kinds = new Map(drawn.map((line, at) => [line.key, ['', 'second'][at]]));
  const isKnown = drawn.some(line => line.values.some(Number.isFinite));
  const rows = [...read.map(line => ({...line, now: line.values.at(-1), held: line.values.filter(Number.isFinite)})), ...facts];
  return html`<${Region} name=${name}>
    <${LineChart} name=${name} series=${drawn.map(line => line.values)} zero show=${isKnown ? show : nothing} ends=${[ago(drawn[0].values.length), t('live.now')]} />
    <${Table} bare=${false} name=${name} columns=${columns(kinds)} rows=${rows} keyOf=${row => row.label} />
    ${hint && html`<p class="hint">${hint}</p>`}
  <//>`;
}

const ago = seconds => t('live.ago', {count: number(seconds)});
const columns = kinds => [
  {label: t('measure.measure'), cell: row => kinds.has(row.key)
    ? html`<span class="whole"><span class=${`key ${kinds.get(row.key)}`} aria-hidden="true"></span>${row.label}</span>` : row.label},
  {label: t('live.now_column'), number: true, cell: row => row.text ?? shown(row.show, row.now)},
  {label: t('live.least'), number: true, cell: row => row.held ? shown(row.show, Math.min(...row.held)) : '–'},
  {label: t('live.most'), number: true, cell: row => row.held ? shown(row.show, Math.max(...row.held)) : '–'},
];

const QUEUE = [{label: t('live.running'), key: 'running', show: number}, {label: t('live.waiting'), key: 'waiting', show: number}];
const BATCH = [
  {label: t('live.sequences'), key: 'sequences', show: rounded}, {label: t('live.step_tokens'), key: 'size', show: rounded, isDrawn: false},
  {label: t('live.tokens'), key: 'tokens', show: rounded, isDrawn: false}, {label: t('live.prompt_tokens'), key: 'prompt', show: rounded, isDrawn: false},
];
const BLOCKS = [{label: t('live.used'), key: 'used', show: number}, {label: t('live.cached'), key: 'cached', show: number}];
const latency = name => [{label: 'p50', key: `${name}50`, show: milliseconds}, {label: 'p95', key: `${name}95`, show: milliseconds}];
const FIRST = latency('ttft'), BETWEEN = latency('itl');

export const share = ({cached_tokens: found, prompt_tokens: asked}) => asked ? percent(found / asked, 0) : '–';

export function Regions({version, history}) {
  const {model, kv_blocks: blocks} = version;
  const each = {history, model};
  const observed = count => [{label: t('live.observed'), text: number(count)}];
  return html`<div class="columns even">
    <${OverTime} ...${each} name=${t('live.queue')} lines=${QUEUE} show=${whole} />
    <${OverTime} ...${each} name=${t('live.batch')} lines=${BATCH} show=${whole} />
    <${OverTime} ...${each} name=${t('live.blocks')} lines=${BLOCKS} show=${whole} facts=${[{label: t('live.free'), text: number(blocks.free)},
      {label: t('live.total'), text: number(blocks.total)}, {label: t('live.hits'), text: share(version.prefix_hits)}]} />
    <${StepCost} cost=${version.cost} steps=${history.steps(model)} />
    <${OverTime} ...${each} name=${t('live.first')} lines=${FIRST} show=${milliseconds} facts=${observed(version.ttft_seconds.count)} />
    <${OverTime} ...${each} name=${t('live.between')} lines=${BETWEEN} show=${milliseconds} facts=${observed(version.itl_seconds.count)} />
  </div>`;
}

const COST = [
  [t('live.constant'), 'constant_seconds', 1], [t('live.per_token'), 'seconds_per_token', 1],
  [t('live.per_kv_token'), 'seconds_per_kv_token', 1000], [t('live.per_pair'), 'seconds_per_attention_pair', 1e6],
];
const VALUES = [{label: t('measure.measure'), key: 'label'}, {label: t('measure.value'), number: true, key: 'text'}];

// A few steps that took much longer than the others stand at the upper edge, or the line would lie on the floor.
function points(steps) {
  const seconds = steps.map(step => step.seconds).sort((a, b) => a - b);
  const most = 2 * seconds[Math.floor(seconds.length * .95)];
  return steps.map(step => step.seconds > most ? {x: step.tokens, y: most, kind: 'beyond'} : {x: step.tokens, y: step.seconds});
}

// True steps by their tokens, under the fitted line: constant + per token, with what the context of these steps costs.
function StepCost({cost, steps}) {
  const name = t('live.cost');
  const {constant_seconds: constant, seconds_per_token: slope, error_ratio: error} = cost;
  const last = steps.at(-1);
  const context = steps.reduce((sum, step) => sum + step.predicted_seconds - constant - slope * step.tokens, 0) / (steps.length || 1);
  const rows = [
    ...COST.map(([label, key, times]) => ({label, text: milliseconds(cost[key] && cost[key] * times)})),
    {label: t('live.error'), text: error === null ? '–' : percent(error, 0)},
    {label: t('live.predicted'), text: milliseconds(last?.predicted_seconds)}, {label: t('live.true'), text: milliseconds(last?.seconds)},
  ];
  return html`<${Region} name=${name}>
    <${ScatterChart} name=${name} points=${points(steps)} show=${last ? milliseconds : nothing}
      line=${constant !== null && steps.length > 0 && (x => Math.max(0, constant + context + slope * x))} />
    <${Table} bare=${false} name=${name} columns=${VALUES} rows=${rows} keyOf=${row => row.label} />
    <p class="hint">${t('live.cost_hint')}</p>
  <//>`;
}

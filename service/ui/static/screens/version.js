// One version: what it is, where it comes from, how good and how fast it is, and how to use it.
import {html, useState} from '../lib/view.js';
import {ask, query} from '../lib/api.js';
import {pageOfReference, pages, repository} from '../lib/addresses.js';
import {Snippets} from '../lib/snippets.js';
import {attempt, say} from '../lib/notice.js';
import {Breach} from '../lib/breach.js';
import {Confirm, Dialog, Facts, Region, Select, Table, Tag} from '../lib/parts.js';
import {QUALITY, SPEED, lines} from '../lib/report.js';
import {mount, places, useAnswer} from '../lib/screen.js';
import {bytes, number, percent, t, time} from '../lib/words.js';

const {model, version} = places;
const here = repository(model, 'versions', version);

function Version() {
  const {data: shown} = useAnswer(here);
  const {data: deployments} = useAnswer('v1/deployments');
  const [dialog, setDialog] = useState('');
  const close = () => setDialog('');
  if (!shown) return null;
  const job = (path, body) => attempt(async () => {
    close();
    const made = await ask(`${here}/${path}`, {method: 'POST', body});
    location.assign(pages.job(made.id));
  });
  const verify = () => attempt(async () => {
    say(t('version.verifying'));
    const found = await ask(`${here}/verify`, {method: 'POST'});
    say(found.ok ? t('version.verified', {count: number(found.files)}) : t('version.damaged', {error: found.error}));
  });
  const remove = () => attempt(async () => {
    close();
    await ask(here, {method: 'DELETE'});
    location.assign(pages.model(model));
  });
  return html`
    <p class="mono">${shown.digest}</p>
    <div class="row">
      <button type="button" onClick=${verify}>${t('version.verify')}</button>
      <button type="button" onClick=${() => setDialog('evaluate')}>${t('version.evaluate')}</button>
      <button type="button" onClick=${() => setDialog('quantize')}>${t('version.quantize')}</button>
      <button type="button" class="danger" onClick=${() => setDialog('delete')}>${t('version.delete')}</button>
      <a class="button" data-instant href=${pages.model(model)}>${t('version.all', {model})}</a>
    </div>
    <div class="columns">
      <${Region} name=${t('version.facts')}><${Facts} facts=${[...facts(shown), ...served(deployments?.data.find(each => each.model === shown.model))]} /><//>
      <${Region} name=${t('version.lineage')}><${Facts} facts=${lineage(shown.lineage)} /><//>
      <${Quality} shown=${shown} />
      <${Speed} report=${shown.report} state=${shown.report_state} />
    </div>
    <${Region} name=${t('version.use')}><${Snippets} reference=${shown.model} /><//>
    <${Region} name=${t('version.files')}><${Table} bare=${false} name=${t('version.files')} columns=${FILES} rows=${shown.files} keyOf=${row => row.path} /><//>
    <div class="columns">
      <${Region} name=${t('version.layers')}><${Table} bare=${false} name=${t('version.layers')} columns=${LAYERS} rows=${shown.layers} /><//>
      <${Region} name=${t('version.card')}>${shown.card ? html`<pre>${shown.card}</pre>` : html`<p class="hint">${t('version.no_card')}</p>`}<//>
    </div>
    <${Feedback} />
    ${dialog === 'evaluate' && html`<${Evaluate} onClose=${close} onRun=${effort => job('evaluate', {effort})} />`}
    ${dialog === 'quantize' && html`<${Quantize} onClose=${close} onRun=${asked => job('quantize', asked)} />`}
    ${dialog === 'delete' && html`<${Confirm} title=${t('version.delete')} onClose=${close} onConfirm=${remove}>${t('version.delete_asks', {version: shown.model})}<//>`}`;
}

const FILES = [
  {label: t('version.path'), key: 'path'},
  {label: t('version.size_bytes'), number: true, cell: row => number(row.size)},
  {label: 'SHA-256', key: 'sha256', mono: true},
];
const LAYERS = [{label: t('version.pattern'), key: 'pattern', mono: true}, {label: t('version.dtype'), key: 'dtype'}];

const facts = shown => [
  [t('models.aliases'), shown.aliases.length > 0 && html`<span class="tags">${shown.aliases.map(alias => html`<a key=${alias} href=${pages.alias(model, alias)}><${Tag} kind="good">${alias}<//></a>`)}<${Breach} broken=${shown.breaks_gate} /></span>`],
  [t('version.precision'), shown.precision], [t('version.dtype'), shown.dtype], [t('version.architecture'), shown.architecture],
  [t('version.parameters'), number(shown.parameters)], [t('version.window'), number(shown.context_window)],
  [t('version.vocabulary'), number(shown.vocab_size)], [t('models.size'), bytes(shown.bytes)], [t('version.license'), shown.license],
  [t('model.created'), time(shown.created_at)],
].filter(([, value]) => value);

// What its engine says where a slow path serves it, and where replicas share weights.
const served = deployment => [
  [t('version.slow_path'), deployment?.slow_path && html`<${SlowPath} path=${deployment.slow_path} />`],
  [t('version.shared'), deployment?.shared_bytes > 0 && bytes(deployment.shared_bytes)],
].filter(([, value]) => value);

function SlowPath({path}) {
  const times = path.slowdown === null ? '' : ` (≤ ${number(path.slowdown, 1)}×)`;
  return html`<${Tag} kind="bad">${number(path.step_ms, 1)} ms${times}<//><ul>${path.reasons.map(reason => html`<li key=${reason}>${reason}</li>`)}</ul>`;
}

const lineage = from => [
  [t('version.parent'), from.parent && html`<a data-instant href=${pageOfReference(from.parent)}>${from.parent}</a>`],
  [t('version.source'), from.source], [t('version.recipe'), from.recipe], [t('version.author'), from.author],
  [t('version.tools'), from.tools.join(', ')],
];

function Quality({shown}) {
  const checks = new Map((shown.gate?.checks ?? []).map(check => [check.measure, check]));
  const rows = lines(QUALITY, shown.report).map(line => ({...line, check: checks.get(line.key === 'recall' ? 'recall_loss' : line.key)}));
  const ratios = [...checks.values()].filter(check => check.measure.includes('_ratio')).map(check => ({
    key: check.measure, label: t(`measure.${check.measure.split('.')[0]}`, {size: check.measure.split('.')[1], of: check.of}), text: `${number(check.value, 2)}×`,
    range: check.low < check.high ? `${number(check.low, 2)} – ${number(check.high, 2)}` : '', check,
  }));
  return html`<${Region} name=${t('version.quality')}>
    ${shown.report ? html`<${Table} bare=${false} name=${t('version.quality')} columns=${GATED} rows=${[...rows, ...ratios]} keyOf=${row => row.key} />
      <p class="hint">${t('version.measured', {time: time(shown.report.created_at), effort: t(`effort.${shown.report.effort}`)})}${shown.report.compared ? ` ${t('version.against', {of: shown.report.compared.reference})}` : ''}</p>`
      : html`<p>${t(`report.${shown.report_state}`)}</p><p class="hint">${t('version.measure_hint')}</p>`}
  <//>`;
}

const GATED = [
  {label: t('measure.measure'), key: 'label'},
  {label: t('measure.value'), number: true, cell: row => html`${row.text}${row.range && html`<br /><span class="hint">${row.range}</span>`}`},
  {label: t('measure.limit'), number: true, cell: row => row.check ? limit(row.check) : '–'},
  {label: t('measure.gate'), cell: row => row.check ? html`<${Tag} kind=${row.check.passes ? 'good' : 'bad'}>${row.check.passes ? t('gate.passes') : t('gate.refuses')}<//>` : '–'},
];
const LIMITS = {
  kl: check => `≤ ${number(check.limit)}`, clear_top1_agreement: check => `≥ ${percent(check.limit, 2)}`, perplexity_change: check => `≤ ${percent(check.limit, 2)}`,
  recall_loss: check => t('gate.recall', {limit: percent(check.limit, 1), of: check.of}), decode_ratio: check => `≥ ${number(check.limit, 2)}×`,
  memory_ratio: check => `≤ ${number(check.limit, 2)}×`,
};
const limit = check => LIMITS[check.measure.split('.')[0]](check);

function Speed({report, state}) {
  return html`<${Region} name=${t('version.speed')}>
    ${report ? html`<${Table} bare=${false} name=${t('version.speed')} columns=${[{label: t('measure.measure'), key: 'label'}, {label: t('measure.value'), number: true, cell: row => html`${row.text}${row.range && html`<br /><span class="hint">${row.range}</span>`}`}]} rows=${lines(SPEED, report)} keyOf=${row => row.key} />
      <p class="hint">${report.speed.host} · ${t('version.threads', {count: report.speed.threads})}</p>` : html`<p>${t(`report.${state}`)}</p>`}
  <//>`;
}

function Feedback() {
  const {data} = useAnswer(`v1/feedback/summary${query({model: `${model}:${version}`})}`);
  if (!data) return null;
  const found = data.data.find(each => each.version === version) ?? {preferred: 0, not_preferred: 0};
  return html`<${Region} name=${t('version.feedback')}>
    <${Table} bare=${false} name=${t('version.feedback')} columns=${[{label: t('measure.measure'), key: 'label'}, {label: t('measure.value'), number: true, key: 'value'}]} rows=${[
      {label: t('feedback.preferred'), value: number(found.preferred)}, {label: t('feedback.not_preferred'), value: number(found.not_preferred)}]} />
    <p class="hint">${t('feedback.hint')}</p>
  <//>`;
}

function Evaluate({onClose, onRun}) {
  const [effort, setEffort] = useState('quick');
  return html`<${Dialog} title=${t('version.evaluate')} onClose=${onClose}>
    <${Select} label=${t('version.effort')} value=${effort} onChange=${setEffort} options=${['quick', 'full'].map(each => [each, t(`effort.${each}`)])} />
    <div class="row"><button type="button" onClick=${onClose}>${t('parts.cancel')}</button><button type="button" class="main" onClick=${() => onRun(effort)}>${t('version.evaluate')}</button></div>
  <//>`;
}

function Quantize({onClose, onRun}) {
  const [precision, setPrecision] = useState('int8');
  const [group, setGroup] = useState('32');
  const asked = precision === 'int4' ? {precision, group_size: Number(group)} : {precision};
  return html`<${Dialog} title=${t('version.quantize')} onClose=${onClose}>
    <${Select} label=${t('version.precision')} value=${precision} onChange=${setPrecision} options=${['int8', 'int8-weight', 'llm-int8', 'int4']} />
    ${precision === 'int4' && html`<${Select} label=${t('version.group_size')} value=${group} onChange=${setGroup} options=${['32', '128']} />`}
    <div class="row"><button type="button" onClick=${onClose}>${t('parts.cancel')}</button><button type="button" class="main" onClick=${() => onRun(asked)}>${t('version.quantize')}</button></div>
  <//>`;
}

mount(Version);

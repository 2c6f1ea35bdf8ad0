// One alias: the version that it points to, the way forward and back, and what it pointed to at any time. A change is sent
// with the ETag of what this page shows, so an old page overwrites nothing.
import {html, useEffect, useRef, useState} from '../lib/view.js';
import {ApiError, ask, send} from '../lib/api.js';
import {pages, repository} from '../lib/addresses.js';
import {rollbackTarget, tagOf, versionOf} from '../lib/changes.js';
import {attempt, fail, say} from '../lib/notice.js';
import {Checkbox, Empty, Facts, Input, Region, Table, Tag} from '../lib/parts.js';
import {QUALITY, lines} from '../lib/report.js';
import {asked, keepAsked, mount, places, useAnswer, useTurns} from '../lib/screen.js';
import {VersionSelect, useVersions} from '../lib/versions.js';
import {bytes, t, time} from '../lib/words.js';

const {model, alias} = places;
const here = repository(model, 'aliases', alias);
const name = `${model}@${alias}`;
const named = version => `${model}:${version}`;

function Alias() {
  const known = useVersions(model);
  const [changes, setChanges] = useState();
  const [stale, setStale] = useState(false);
  const [at, setAt] = useState(asked.get('at') ?? '');
  const load = async () => {
    const [page, found] = await Promise.all([known.load(), ask(`${here}/history`)]);
    const target = await rollbackTarget(found.data, exists(page));
    setChanges(Object.assign(found.data, {target}));
    setStale(false);
    return found.data;
  };
  const look = () => attempt(async () => {
    keepAsked('at', at);
    const [found] = (await ask(`${here}/history?at=${encodeURIComponent(at)}`)).data;
    say(found?.version ? t('alias.in_force', {version: named(found.version), time: at}) : t('alias.none_in_force', {time: at}));
  });
  useEffect(() => { load().then(found => at ? look() : say(present(found))).catch(fail); }, []);
  if (!changes) return null;
  return html`
    <div class="row">
      <a class="button" data-instant href=${pages.rollout(model, alias)}>${t('model.rollout')}</a>
      <a class="button" data-instant href=${pages.model(model)}>${t('version.all', {model})}</a>
    </div>
    <div class="columns">
      <${Region} name=${t('alias.point')}><${Change} changes=${changes} known=${known} load=${load} stale=${stale} onStale=${() => { say(''); setStale(true); }} /><//>
      <${Region} name=${t('alias.moment')}>
        <form onSubmit=${event => { event.preventDefault(); look(); }}>
          <div class="row"><${Input} class="grow" label=${t('alias.at')} value=${at} onInput=${setAt} aria-describedby="at-hint" /><button>${t('alias.look_up')}</button></div>
          <p class="hint" id="at-hint">${t('alias.at_hint')}</p>
        </form>
      <//>
    </div>
    ${changes.length ? html`<${Region} name=${t('alias.history')}><${Table} bare=${false} name=${t('alias.history')} columns=${COLUMNS} rows=${[...changes].reverse()} keyOf=${row => row.time} /><//>`
      : html`<${Empty}>${t('alias.no_history')}<//>`}`;
}

// Whether a version is there: by the list, where that is whole, else by asking.
const exists = page => async version => page.versions.some(each => each.version === version)
  || (Boolean(page.next_cursor) && ask(repository(model, 'versions', version)).then(() => true, gone));
function gone(error) {
  if (error.status === 404) return false;
  throw error;
}

const present = changes => versionOf(changes) ? t('alias.points', {alias: name, version: named(versionOf(changes)), time: time(changes.at(-1).time)})
  : t('alias.points_nowhere', {alias: name});

// What the form does. A change is refused where the alias is not as this page shows it.
function useChange({changes, known, load, onStale, first}) {
  const [form, setForm] = useState({reason: '', override: false});
  const turns = useTurns();
  const options = known.versions.map(each => each.version);
  const version = form.version ?? options.find(each => each !== versionOf(changes)) ?? options[0];
  const run = work => turns(() => attempt(() => work().catch(error => { if (error.status === 412) onStale(); throw error; })));
  const change = async (path, method, body) => {
    const done = await (await send(path, {method, body, headers: {'If-Match': tagOf(changes)}})).json();
    await load();
    setForm({version, reason: '', override: false});
    first.current.focus();
    return done.change;
  };
  const promote = run(async () => {
    const done = await change(here, 'PUT', {version, reason: form.reason, override: form.override});
    const shown = {alias: name, version: named(done.version)};
    say(done.time === changes.at(-1)?.time ? t('alias.already', shown) : t('alias.promoted', shown));
  });
  const rollBack = run(async () => {
    await unmoved(changes);
    const done = await change(`${here}/rollback`, 'POST', {reason: form.reason});
    say(t('alias.rolled_back', {alias: name, version: named(done.version)}));
  });
  const again = run(async () => { say(present(await load())); first.current.focus(); });
  return {form, put: key => value => setForm(old => ({...old, [key]: value})), options, version, promote, rollBack, again};
}

function Change({changes, known, load, stale, onStale}) {
  const first = useRef();
  const {form, put, options, version, promote, rollBack, again} = useChange({changes, known, load, onStale, first});
  return html`<form onSubmit=${promote}>
    <div class="row"><${VersionSelect} label=${t('model.version')} model=${model} known=${known} options=${options} value=${version} onChange=${put('version')} /></div>
    <${Judged} key=${version} version=${version} />
    <${Input} label=${t('alias.reason')} value=${form.reason} onInput=${put('reason')} maxlength="1000" autocomplete="off" />
    <div class="row middle after"><${Checkbox} label=${t('alias.override')} checked=${form.override} onChange=${put('override')} aria-describedby="override-hint" /><span class="hint" id="override-hint">${t('alias.override_hint')}</span></div>
    <div class="row">
      <button class="main" ref=${first}>${t('alias.promote')}</button>
      ${changes.target && html`<button type="button" onClick=${rollBack}>${t('alias.roll_back', {version: named(changes.target)})}</button>`}
      ${stale && html`<button type="button" onClick=${again}>${t('alias.load_again')}</button>`}
    </div>
    ${stale && html`<p class="hint">${t('alias.stale')}</p>`}
  </form>`;
}

// A rollback leads where the button says only while the history is the one shown; two moves may have ended at the same
// version, which the ETag does not tell.
async function unmoved(changes) {
  const found = (await ask(`${here}/history`)).data;
  if (versionOf(found) === versionOf(changes) && found.length !== changes.length) throw new ApiError(t('alias.moved'), 412);
}

// What is known of the version to promote, and how the gate of this alias judges it.
function Judged({version}) {
  const {data: shown} = useAnswer(version ? repository(model, 'versions', version) : null);
  if (!shown) return html`<p class="hint judged"></p>`;
  const [perplexity] = lines(QUALITY.slice(0, 1), shown.report);
  const gate = shown.gate?.alias === alias ? shown.gate.checks : null;
  const broken = gate?.filter(check => !check.passes) ?? [];
  return html`<div class="judged"><${Facts} facts=${[
    [t('version.precision'), shown.precision], [t('models.size'), bytes(shown.bytes)],
    [t('measure.perplexity'), perplexity ? `${perplexity.text}${perplexity.range ? ` (${perplexity.range})` : ''}` : t(`report.${shown.report_state}`)],
    [t('measure.gate'), gate && html`<${Tag} kind=${broken.length ? 'bad' : 'good'}>${broken.length ? t('gate.refuses') : t('gate.passes')}<//> ${broken.map(check => check.sentence).join('; ')}`],
  ]} /></div>`;
}

const link = version => version === null ? '–' : html`<a class="whole" data-instant href=${pages.version(model, version)}>${named(version)}</a>`;
const COLUMNS = [
  {label: t('alias.time'), cell: row => html`<a href=${`${pages.alias(model, alias)}?at=${encodeURIComponent(row.time)}`}><time class="whole" datetime=${row.time} title=${row.time}>${time(row.time)}</time></a>`},
  {label: t('alias.change'), cell: row => html`<span class="whole">${t(`change.${row.action}`)}</span>`},
  {label: t('model.version'), cell: row => link(row.version)},
  {label: t('alias.from'), cell: row => link(row.previous)},
  {label: t('alias.by'), cell: row => html`<span class="whole">${row.actor || '–'}</span>`},
  {label: t('alias.reason'), cell: row => html`<div class="prose">${row.reason || '–'}${row.overridden.length > 0 && html`<br /><${Tag} kind="warn">${t('alias.overridden')}<//> <span class="hint">${row.overridden.join('; ')}</span>`}</div>`},
];

mount(Alias);

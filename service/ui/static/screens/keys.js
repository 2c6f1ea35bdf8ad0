// The keys of this server's callers: made, rotated and deleted; and what each has used. A secret is shown this once. The
// key that changes may be this browser's own, so a change asks for nothing besides: a 401 would take the secret away.
import {html, useEffect, useRef, useState} from '../lib/view.js';
import {ask} from '../lib/api.js';
import {pages} from '../lib/addresses.js';
import {copy} from '../lib/copy.js';
import {attempt, say} from '../lib/notice.js';
import {usePages} from '../lib/pages.js';
import {Checkbox, Confirm, Dialog, Empty, Input, Region, Select, Table, Tag} from '../lib/parts.js';
import {mount, useTurns} from '../lib/screen.js';
import {number, t, time} from '../lib/words.js';

const SCOPES = ['generate', 'sessions', 'models:read', 'models:write', 'metrics', 'admin'];
const LIMITS = ['requests_per_minute', 'tokens_per_minute', 'requests_per_day', 'tokens_per_day', 'concurrent'];
const GRACES = ['0', '3600', '86400', '604800'];
const pathOf = (key, ...rest) => ['v1/keys', encodeURIComponent(key.id), ...rest].join('/');

function Keys() {
  const {rows, change} = usePages('v1/keys');
  const [dialog, open] = useState({});
  const [secret, setSecret] = useState(null);
  const first = useRef();
  const refusal = useRef();
  const turns = useTurns();
  const close = () => open({});
  const run = (event, work) => turns(async () => {
    refusal.current.replaceChildren();
    if (await attempt(work)) close();
    else refusal.current?.replaceChildren(...document.getElementById('alert').childNodes);
  })(event);
  const shown = ({key, ...row}, text) => {
    setSecret({name: row.name, secret: key});
    change(old => old.some(each => each.id === row.id) ? old.map(each => each.id === row.id ? row : each) : [...old, row]);
    say(text);
  };
  const create = (event, body) => run(event, async () => shown(await ask('v1/keys', {method: 'POST', body}), t('keys.created', body)));
  const rotate = (event, key, seconds) => run(event, async () =>
    shown(await ask(pathOf(key, 'rotate'), {method: 'POST', body: {grace_seconds: Number(seconds)}}), t('keys.rotated', key)));
  const remove = (event, key) => run(event, async () => {
    await ask(pathOf(key), {method: 'DELETE'});
    change(old => old.filter(each => each.id !== key.id));
    say(t('keys.deleted', {name: key.name}));
  }).then(() => document.activeElement === document.body && first.current.focus());
  useEffect(() => { if (rows && !secret) say(rows.length ? t('keys.found', {count: number(rows.length)}) : t('keys.empty')); }, [Boolean(rows)]);
  return html`
    ${rows && html`<div class="row middle"><button type="button" class="main" ref=${first} onClick=${() => open({create: true})}>${t('keys.create')}</button><a href=${pages.audit()}>${t('title.audit')}</a></div>`}
    ${secret && html`<${Secret} ...${secret} onDone=${() => { setSecret(null); first.current.focus(); }} />`}
    ${rows?.length > 0 && html`<${Table} name=${t('title.keys')} columns=${columns(open)} rows=${rows} keyOf=${key => key.id} />`}
    ${rows?.length === 0 && html`<${Empty}>${t('keys.empty')}<//>`}
    <${Usage} keys=${rows ?? []} />
    ${dialog.create && html`<${Create} refusal=${refusal} onClose=${close} onRun=${create} />`}
    ${dialog.rotate && html`<${Rotate} name=${dialog.rotate.name} refusal=${refusal} onClose=${close} onRun=${(event, seconds) => rotate(event, dialog.rotate, seconds)} />`}
    ${dialog.remove && html`<${Confirm} title=${t('keys.delete')} onClose=${close} onConfirm=${event => remove(event, dialog.remove)}><${Refusal} line=${refusal} />${t('keys.delete_asks', dialog.remove)}<//>`}`;
}

// What was refused, inside the dialog that asked for it: the page's own line lies behind the dialog.
const Refusal = ({line}) => html`<span role="alert" ref=${line}></span>`;

const columns = open => [
  {label: t('keys.name'), cell: key => html`<span id=${key.id}>${key.name}</span><br /><span class="hint">${key.id}</span>`},
  {label: t('keys.scopes'), cell: key => html`<span class="tags">${key.scopes.map(scope => html`<${Tag} key=${scope} kind=${scope === 'admin' ? 'warn' : ''}>${scope}<//>`)}</span>`},
  {label: t('keys.models'), cell: key => key.models?.join(', ') ?? t('keys.all')},
  {label: t('keys.limits'), cell: key => LIMITS.filter(name => key.limits?.[name]).map(name => html`<div key=${name}>${t(`keys.limit_${name}`)}: ${number(key.limits[name])}</div>`)},
  {label: t('keys.ends'), cell: ({expires_at: at}) => at ? html`<time datetime=${at}>${time(at)}</time> ${new Date(at) < new Date() && html`<${Tag} kind="bad">${t('keys.ended')}<//>`}` : t('keys.never')},
  {cell: key => html`<div class="row tight">
    <button type="button" aria-describedby=${key.id} onClick=${() => open({rotate: key})}>${t('keys.rotate')}</button>
    <button type="button" class="danger" aria-describedby=${key.id} onClick=${() => open({remove: key})}>${t('keys.delete')}</button></div>`},
];

function Secret({name, secret, onDone}) {
  const first = useRef();
  useEffect(() => first.current.focus(), [secret]);
  return html`<${Region} name=${t('keys.secret_of', {name})}>
    <div class="snippet"><pre><code>${secret}</code></pre>
      <button type="button" class="quiet" ref=${first} onClick=${() => copy(secret)}>${t('keys.copy')}</button></div>
    <div class="row middle after"><button type="button" onClick=${onDone}>${t('keys.hide')}</button><span class="hint">${t('keys.once')}</span></div>
  <//>`;
}

function Create({refusal, onClose, onRun}) {
  const [form, setForm] = useState({name: '', scopes: ['generate'], models: '', ends: '', limits: {}});
  const put = key => value => setForm(old => ({...old, [key]: value}));
  const limit = name => value => setForm(old => ({...old, limits: {...old.limits, [name]: value}}));
  const tick = scope => is => put('scopes')(is ? [...form.scopes, scope] : form.scopes.filter(each => each !== scope));
  return html`<${Dialog} title=${t('keys.create')} onClose=${onClose}>
    <${Refusal} line=${refusal} />
    <form onSubmit=${event => onRun(event, bodyOf(form))}>
      <${Input} label=${t('keys.name')} value=${form.name} onInput=${put('name')} required maxlength="100" autocomplete="off" autofocus />
      <fieldset><legend>${t('keys.scopes')}</legend>${SCOPES.map(scope => html`<${Checkbox} key=${scope} label=${scope} checked=${form.scopes.includes(scope)} onChange=${tick(scope)} />`)}</fieldset>
      <${Input} label=${t('keys.models')} value=${form.models} onInput=${put('models')} hint=${t('keys.models_hint')} autocomplete="off" />
      <${Input} type="datetime-local" label=${t('keys.ends')} value=${form.ends} onInput=${put('ends')} hint=${t('keys.ends_hint')} />
      <fieldset><legend>${t('keys.limits')}</legend>${LIMITS.map(name => html`<${Input} key=${name} type="number" min="1" step="1" label=${t(`keys.limit_${name}`)} value=${form.limits[name] ?? ''} onInput=${limit(name)} />`)}</fieldset>
      <div class="row"><button type="button" onClick=${onClose}>${t('parts.cancel')}</button><button class="main" disabled=${!form.scopes.length}>${t('keys.create')}</button></div>
    </form>
  <//>`;
}

// The body that makes a key, with what was filled in.
function bodyOf({name, scopes, models, ends, limits}) {
  const named = models.split(/[\s,]+/).filter(Boolean);
  const set = Object.entries(limits).filter(([, most]) => most).map(([key, most]) => [key, Number(most)]);
  return {name, scopes, ...(named.length && {models: named}), ...(ends && {expires_at: new Date(ends).toISOString()}),
    ...(set.length && {limits: Object.fromEntries(set)})};
}

function Rotate({name, refusal, onClose, onRun}) {
  const [seconds, setSeconds] = useState(GRACES[0]);
  return html`<${Dialog} title=${t('keys.rotate')} onClose=${onClose}>
    <${Refusal} line=${refusal} />
    <form onSubmit=${event => onRun(event, seconds)}>
      <p>${t('keys.rotate_asks', {name})}</p>
      <${Select} label=${t('keys.grace')} value=${seconds} onChange=${setSeconds} options=${GRACES.map(each => [each, t(`keys.grace_${each}`)])} />
      <div class="row"><button type="button" onClick=${onClose}>${t('parts.cancel')}</button><button class="main">${t('keys.rotate')}</button></div>
    </form>
  <//>`;
}

function Usage({keys}) {
  const [by, setBy] = useState('day');
  const [key, setKey] = useState('');
  const {rows, more} = usePages('v1/usage', {by, key});
  const names = new Map(keys.map(each => [each.id, each.name]));
  return html`<${Region} name=${t('keys.usage')}>
    <div class="row">
      <${Select} label=${t('keys.by')} value=${by} onChange=${setBy} options=${['day', 'hour'].map(each => [each, t(`keys.by_${each}`)])} />
      ${keys.length > 0 && html`<${Select} label=${t('keys.key')} value=${key} onChange=${setKey} options=${[['', t('keys.all')], ...names]} />`}
    </div>
    ${rows?.length > 0 && html`<${Table} bare=${false} name=${t('keys.usage')} columns=${used(by, names)} rows=${rows} keyOf=${row => `${row.start} ${row.key} ${row.model}`} />`}
    ${rows?.length === 0 && html`<p class="hint">${t('keys.no_usage')}</p>`}
    ${more && html`<button type="button" onClick=${() => attempt(more)}>${t('parts.more')}</button>`}
  <//>`;
}

const COUNTS = ['requests', 'refused', 'prompt_tokens', 'cached_tokens', 'completion_tokens'];
const used = (by, names) => [
  {label: t(`keys.by_${by}`), cell: row => html`<time class="whole" datetime=${row.start}>${by === 'day' ? row.start.slice(0, 10) : time(row.start)}</time>`},
  {label: t('keys.key'), cell: row => names.get(row.key) ?? row.key},
  {label: t('keys.model'), cell: row => row.model ?? '–'},
  ...COUNTS.map(name => ({label: t(`keys.count_${name}`), number: true, cell: row => number(row[name])})),
];

mount(Keys);

// One stored chat: its messages with what made them, and every change that the API offers.
import {html, useEffect, useState} from '../lib/view.js';
import {ask, send} from '../lib/api.js';
import {apiAddress, pages} from '../lib/addresses.js';
import {functionsOf} from '../lib/calls.js';
import {Article, Message} from '../lib/message.js';
import {attempt, say} from '../lib/notice.js';
import {usePages} from '../lib/pages.js';
import {Confirm, Facts} from '../lib/parts.js';
import {mount, places, rename} from '../lib/screen.js';
import {nameOf, useSession} from '../lib/stored-session.js';
import {number, t, time} from '../lib/words.js';

const here = `v1/sessions/${encodeURIComponent(places.session)}`;
const AHEAD = 500;
const ofMessage = message => `${here}/messages/${encodeURIComponent(message.id)}`;

function Session() {
  const stored = useSession(here);
  const {session, round} = stored;
  // Its messages are asked for behind the session, so that its revision is never newer than what the page shows.
  const messages = usePages(session ? `${here}/messages` : null, {limit: 100}, round, AHEAD);
  useEffect(() => { if (session) rename(nameOf(session)); }, [session]);
  const count = messages.rows?.length;
  useEffect(() => { if (count !== undefined) say(count ? t('session.found', {count: number(count)}) : t('session.empty')); }, [count, round]);
  if (!session) return null;
  return html`
    <${Actions} session=${session} onDelete=${stored.remove} />
    ${stored.isOld && html`<p class="old">${t('session.old')} <button type="button" onClick=${() => attempt(stored.load)}>${t('session.newest')}</button></p>`}
    <div class="across"><${Facts} facts=${facts(session)} /></div>
    ${session.system !== null && html`<${Article} name=${t('session.system_prompt')} kind="system" text=${session.system}
      onSave=${system => stored.patch(here, {system}, stored.put, t('session.saved'))} />`}
    <${Messages} stored=${stored} messages=${messages} />`;
}

function Messages({stored, messages}) {
  const put = changed => messages.change(rows => rows.map(row => row.id === changed.id ? changed : row));
  const edit = message => content => stored.patch(ofMessage(message), {content}, put, t('session.saved'));
  const pin = message => () => stored.patch(ofMessage(message), {pinned: !message.pinned}, put, message.pinned ? t('session.let_go') : t('session.stays'));
  const fork = message => () => attempt(async () => {
    const made = await ask(`${here}/fork`, {method: 'POST', body: {at: message.id}});
    location.assign(pages.session(made.id));
  });
  const called = functionsOf(messages.rows ?? []);
  return html`${messages.rows?.map(message => html`<${Message} key=${message.id} message=${message} called=${called.get(message.tool_call_id)}
      onEdit=${edit(message)} onPin=${pin(message)} onFork=${fork(message)} />`)}
    ${messages.more && html`<button type="button" onClick=${() => attempt(messages.more)}>${t('parts.more')}</button>`}`;
}

function Actions({session, onDelete}) {
  const [dialog, setDialog] = useState('');
  const close = () => setDialog('');
  const end = work => () => { close(); attempt(async () => { await work(); location.assign(pages.sessions()); }); };
  const erase = () => send(`${here}?erase=true`, {method: 'DELETE'});
  return html`<div class="row middle">
      <a class="button" href=${pages.playground(session.id)}>${t('session.open')}</a>
      <a class="button" href=${apiAddress(`${here}/export`).href} download=${`${session.id}.jsonl`}>${t('session.export')}</a>
      <button type="button" class="danger" onClick=${() => setDialog('delete')}>${t('session.delete')}</button>
      <button type="button" class="danger" onClick=${() => setDialog('erase')}>${t('session.erase')}</button>
    </div>
    ${dialog === 'delete' && html`<${Confirm} title=${t('session.delete')} onClose=${close} onConfirm=${end(onDelete)}>${t('session.delete_asks')}<//>`}
    ${dialog === 'erase' && html`<${Confirm} title=${t('session.erase')} onClose=${close} onConfirm=${end(erase)}>${t('session.erase_asks')}<//>`}`;
}

const facts = session => [
  [t('sessions.model'), session.model ?? t('sessions.default_model')], [t('sessions.policy'), session.policy ?? 'window'],
  [t('session.metadata'), Object.keys(session.metadata).length > 0 && html`<code>${JSON.stringify(session.metadata)}</code>`],
  [t('session.begun'), time(session.created_at)], [t('session.expires'), time(session.expires_at)],
].filter(([, value]) => value);

mount(Session);

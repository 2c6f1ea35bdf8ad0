// A chat with a version, and beside it what the model received of it: before it is sent, and after each answer.
import {html, useEffect, useRef, useState} from '../lib/view.js';
import {pages} from '../lib/addresses.js';
import {Chat} from '../lib/chat.js';
import {Composer} from '../lib/composer.js';
import {Log, Said, speaker} from '../lib/conversation.js';
import {attempt, fail, say} from '../lib/notice.js';
import {Input, Region, Select} from '../lib/parts.js';
import {usePreview} from '../lib/preview.js';
import {Receipt} from '../lib/receipt.js';
import {asked, keepAsked, mount} from '../lib/screen.js';
import {offered, useServed} from '../lib/served.js';
import {number, t} from '../lib/words.js';

const POLICIES = ['refuse', 'window', 'middle', 'summarise', 'retrieve'];
const FIELDS = [['temperature', 'any'], ['max_new_tokens', '1'], ['top_p', 'any'], ['top_k', '1'], ['seed', '1']];
const ALTERNATIVES = 5;
const SHOWN = 100;
const EMPTY = {model: '', policy: 'window', budget: '', ...Object.fromEntries(FIELDS.map(([name]) => [name, '']))};

function Playground() {
  const versions = useServed();
  const [, setDrawn] = useState(0);
  const draw = () => setDrawn(count => count + 1);
  const [chat] = useState(() => new Chat(draw));
  const [form, setForm] = useState(EMPTY);
  const [text, setText] = useState('');
  const [chosen, setChosen] = useState(null);
  const [sent, setSent] = useState('');  // what was chosen when the shown receipt was made
  useStart(chat, versions, setForm, setSent);
  const preview = usePreview(previewed(chat, form, text, sent, versions));
  const put = name => value => setForm(old => ({...old, [name]: value}));
  const act = async work => {
    setChosen(null);
    say('');
    const well = await attempt(work);
    setSent(chosenFor(form));
    if (well) report(chat);
    return well;
  };
  const send = async words => {
    setText('');
    if (!await act(() => chat.send(words, options(form)))) setText(later => later ? `${words}\n${later}` : words);
  };
  const lib = useAnswered(chat);
  const answer = chosen ?? chat.last;
  const buttons = lib && (item => html`<${lib.Buttons} chat=${chat} item=${item} chosen=${chosen === item}
    onAgain=${() => act(() => lib.again(chat, item, options(form)))} onChoose=${() => setChosen(chosen === item ? null : item)}
    onBranch=${() => attempt(async () => location.assign(pages.playground(await lib.fork(chat, item))))} />`);
  return html`<div class="split">
    <div class="beside">
      <div class="row">
        <div class="grow"><${Select} label=${t('model.version')} value=${form.model} onChange=${put('model')} options=${offered(versions, form.model)} /></div>
        <a class="button" href=${pages.playground()}>${t('chat.new')}</a>
        <a class="button" href=${pages.sideBySide(form.model, '')}>${t('title.side-by-side')}</a>
      </div>
      <${Conversation} chat=${chat} buttons=${buttons} />
      <${Composer} text=${text} onText=${setText} onSend=${send} button=${t('chat.send')} busy=${chat.busy} onStop=${() => chat.stop()} />
      <div class="fields">${FIELDS.map(([name, step]) => html`<${Input} key=${name} name=${name} type="number" step=${step} placeholder=${t('playground.default')} label=${t(`field.${name}`)} value=${form[name]} onInput=${put(name)} />`)}</div>
    </div>
    <div class="dense">
      <${Context} chat=${chat} form=${form} put=${put} preview=${preview} answer=${answer} />
      <${Region} name=${t('tokens.answer')}>
        ${lib && answer?.tokens.length ? html`<p class="hint">${t('tokens.hint')}</p><${lib.AnswerTokens} tokens=${answer.tokens} />` : html`<p class="hint">${t('tokens.nothing')}</p>`}
      <//>
    </div>
  </div>`;
}

// What one can do with answers is fetched when there is one.
function useAnswered(chat) {
  const [lib, setLib] = useState(null);
  const isThere = chat.items.length > 0;
  useEffect(() => { if (isThere) import('../lib/answered.js').then(setLib, fail); }, [isThere]);
  return lib;
}

// Reads the chat of this address, chooses its version and policy, and keeps the address true.
function useStart(chat, versions, setForm, setSent) {
  const id = chat.session?.id;
  const first = useRef(true);
  useEffect(() => {
    if (!asked.get('session')) return say(t('playground.empty'));
    attempt(async () => {
      await chat.open(asked.get('session'));
      const held = {model: chat.last?.model ?? chat.session.model, policy: chat.session.policy};
      const shown = form => ({...form, ...Object.fromEntries(Object.entries(held).filter(([, value]) => value))});
      setForm(old => { setSent(chosenFor(shown(old))); return shown(old); });
      report(chat);
    });
  }, []);
  useEffect(() => { if (!first.current || id) keepAsked('session', id); first.current = false; }, [id]);
  useEffect(() => {
    if (versions.known) setForm(old => ({...old, model: old.model || versions.all[0] || ''}));
    if (versions.known && !versions.all.length) say(t('models.empty'));
  }, [versions.known]);
}

const report = chat => say(chat.items.at(-1)?.state ? t('playground.stopped') : t('playground.kept', {count: number(chat.items.filter(item => !item.state).length)}));

const filled = entries => Object.fromEntries(entries.filter(([, value]) => value !== '').map(([name, value]) => [name, figure(value)]));
// A whole number that a script cannot hold goes as text, and the API says so.
const figure = value => /^\d+$/.test(value) && !Number.isSafeInteger(Number(value)) ? value : Number(value);
const context = form => ({policy: form.policy, ...filled([['max_input_tokens', form.budget]]), inspect: true});
const options = form => ({
  model: form.model, policy: form.policy, context: context(form),
  parameters: {...filled(FIELDS.map(([name]) => [name, form[name]])), details: true, top_n_tokens: ALTERNATIVES},
});
const chosenFor = form => JSON.stringify([form.model, form.policy, form.budget, form.max_new_tokens]);

// The body of the preview; null where the last answer's receipt tells more, and where a version would be loaded for it.
function previewed(chat, form, text, sent, versions) {
  const isWanted = text.trim() || (chat.last ? sent !== chosenFor(form) : versions.loaded.has(form.model));
  if (chat.busy || !form.model || !isWanted) return null;
  return {
    model: form.model, messages: [{role: 'user', content: text}], ...(chat.session && {session_id: chat.session.id}),
    parameters: filled([['max_new_tokens', form.max_new_tokens]]), context: context(form),
  };
}

function Conversation({chat, buttons}) {
  const [most, setMost] = useState(SHOWN);
  const more = chat.items.length > most;
  return html`<${Log} name=${t('chat.conversation')} busy=${chat.busy}>
    ${more && html`<button type="button" onClick=${() => setMost(most + SHOWN)}>${t('chat.earlier')}</button>`}
    ${!chat.items.length && html`<p class="hint">${t('playground.hint')}</p>`}
    ${chat.items.slice(more ? -most : 0).map((item, at) => html`<${Said} key=${at} item=${item} name=${speaker(item)}>
      ${item.role !== 'user' && item.state !== 'waiting' && buttons?.(item)}
    <//>`)}
  <//>`;
}

function Context({chat, form, put, preview, answer}) {
  const kept = useRef(null);
  const isOver = preview?.data?.would_refuse || preview?.error;
  const shown = preview
    ? {receipt: preview.data?.context, note: isOver ? '' : t('context.preview', {version: preview.data.model}), refused: preview.data?.error ?? preview.error?.message}
    : answer?.receipt && {receipt: answer.receipt, note: t('context.of', {version: answer.model})};
  if (shown && !(chat.busy && kept.current)) kept.current = shown;
  const {receipt, note, refused} = kept.current ?? {note: t('context.nothing')};
  return html`<${Region} name=${t('context.context')}>
    <div class="row">
      <${Select} label=${t('context.policy')} value=${form.policy} onChange=${put('policy')} options=${POLICIES.map(each => [each, t(`policy.${each}`)])} />
      <${Input} name="budget" type="number" min="1" step="1" placeholder=${t('context.whole')} label=${t('context.budget')} value=${form.budget} onInput=${put('budget')} />
    </div>
    ${note && html`<p class="hint">${note}</p>`}
    ${refused && html`<p class="refused">${refused}</p>`}
    ${receipt && html`<${Receipt} receipt=${receipt} items=${chat.items} />`}
  <//>`;
}

mount(Playground);

// One message to two versions, whose answers stand side by side; a vote says which is better. Blind, nobody sees which
// version is which before the vote.
import {html, useEffect, useState} from '../lib/view.js';
import {ask} from '../lib/api.js';
import {pageOfReference} from '../lib/addresses.js';
import {Chat} from '../lib/chat.js';
import {Composer} from '../lib/composer.js';
import {Log, Said} from '../lib/conversation.js';
import {attempt, fail, quiet, say} from '../lib/notice.js';
import {Checkbox, Region, Select} from '../lib/parts.js';
import {asked, keepAsked, mount} from '../lib/screen.js';
import {offered, useServed} from '../lib/served.js';
import {t} from '../lib/words.js';

const LETTERS = ['a', 'b'];

function SideBySide() {
  const versions = useServed();
  const [, setDrawn] = useState(0);
  const draw = () => setDrawn(count => count + 1);
  const [sides] = useState(() => LETTERS.map(letter => ({letter, chat: new Chat(draw), model: '', owed: ''})));
  const [chosen, setChosen] = useState({a: asked.get('a') ?? '', b: asked.get('b') ?? ''});
  const [blind, setBlind] = useState(true);
  const [known, setKnown] = useState(false);
  const [better, setBetter] = useState(null);
  const [text, setText] = useState('');
  useEffect(() => {
    if (versions.known) setChosen(old => firstTwo(old, versions.all));
    say(versions.known && !versions.all.length ? t('models.empty') : t('side.empty'));
  }, [versions.known]);
  const begun = Boolean(sides[0].model);
  const hidden = blind && !known;
  const busy = sides.some(side => side.chat.busy);
  const choose = letter => value => { setChosen(old => ({...old, [letter]: value})); keepAsked(letter, value); };
  const send = async words => {
    quiet();
    say('');
    setText('');
    setBetter(null);
    if (!begun) deal(sides, chosen, blind);
    await Promise.all(sides.map(side => tell(side, words)));
    if (takenBack(sides)) setText(later => later ? `${words}\n${later}` : words);
    else say(isVotable(sides) ? t('side.asks') : t('side.no_vote'));
    draw();
  };
  const retry = async side => { quiet(); await tell(side, side.owed); draw(); };
  const prefer = (side, other) => attempt(async () => {
    const [won, lost] = [side.chat.last, other.chat.last];
    await ask('v1/feedback', {method: 'POST', body: {id: won.answer, rating: 1, preferred_over: lost.answer}});
    setBetter(side);
    setKnown(true);
    setChosen({a: sides[0].model, b: sides[1].model});
    say(t('side.stored', {better: won.model, worse: lost.model}));
  });
  return html`
    <div class=${begun && hidden ? 'row middle' : 'row'}>
      ${begun && hidden ? html`<p class="hint grow">${t('side.hidden')}</p>` : LETTERS.map(letter => html`<div key=${letter} class="grow"><${Select} disabled=${begun}
        label=${t(`side.version_${letter}`)} value=${chosen[letter]} onChange=${choose(letter)} options=${offered(versions, chosen[letter])} /></div>`)}
      <${Checkbox} label=${t('side.blind')} checked=${blind} disabled=${begun && !hidden} onChange=${on => { setBlind(on); if (begun) setChosen({a: sides[0].model, b: sides[1].model}); }} />
      <a class="button" href="">${t('chat.new')}</a>
    </div>
    <div class="pair">${sides.map(side => html`<${Side} key=${side.letter} side=${side} hidden=${hidden} busy=${busy} onRetry=${() => retry(side)} />`)}</div>
    <div class="row middle">
      ${sides.map((side, at) => html`<button key=${side.letter} type="button" disabled=${busy || !isVotable(sides)} aria-pressed=${better === side ? 'true' : 'false'} onClick=${() => prefer(side, sides[1 - at])}>${t(`side.better_${side.letter}`)}</button>`)}
      <span class="hint">${t('side.hint')}</span>
    </div>
    <${Composer} text=${text} onText=${setText} onSend=${send} button=${t('side.ask')} busy=${busy} onStop=${() => sides.forEach(side => side.chat.stop())} />`;
}

// The versions of the address, else the default and the next one.
function firstTwo({a, b}, all) {
  const first = a || (all.find(each => each !== b) ?? '');
  return {a: first, b: b || (all.find(each => each !== first) ?? first)};
}

// Says which side is which version: in a random order where nobody is to know.
function deal(sides, chosen, blind) {
  const models = [chosen.a, chosen.b];
  if (blind && Math.random() < .5) models.reverse();
  sides.forEach((side, at) => { side.model = models[at]; });
}

async function tell(side, words) {
  side.owed = '';
  try {
    await side.chat.send(words, {model: side.model, policy: 'window', context: {policy: 'window'}});
  } catch (error) {
    side.owed = words;
    fail(error);
  }
}

// Where both have refused a message it was not said; where one has, that one can be asked again. Which side is which
// version stays as soon as one has answered.
function takenBack(sides) {
  if (!sides.every(side => side.owed)) return false;
  const isNew = sides.every(side => !side.chat.items.length);
  sides.forEach(side => {
    side.owed = '';
    if (isNew) side.model = '';
  });
  return true;
}

const isVotable = sides => sides.every(({chat, owed}) => !owed && chat.items.length > 0 && !chat.items.at(-1).state);

function Side({side, hidden, busy, onRetry}) {
  const {chat, letter, model, owed} = side;
  const name = t(`side.answer_${letter}`);
  return html`<${Region} name=${name}>
    <p class="hint">${!model ? t('side.nobody') : hidden ? t('side.unknown') : html`<a href=${pageOfReference(model)}>${model}</a>`}</p>
    <${Log} name=${name} busy=${chat.busy}>
      ${chat.items.map((item, at) => html`<${Said} key=${at} item=${item} facts=${!hidden} name=${item.role === 'user' ? t('chat.you') : hidden ? name : item.model} />`)}
      ${owed && html`<div class="row"><span class="hint">${t('side.refused')}</span><button type="button" disabled=${busy} onClick=${onRetry}>${t('side.again')}</button></div>`}
    <//>
  <//>`;
}

mount(SideBySide);

// The list of the dialog "Go to": screens, and models by a few letters.
import {html, render, useEffect, useState} from './view.js';
import {ask, query} from './api.js';
import {pages} from './addresses.js';
import {useSettled} from './screen.js';
import {t} from './words.js';

const found = document.getElementById('go-to-found');
const screens = ['models', 'playground', 'sessions', 'live', 'jobs', 'keys'].map(name => ({text: t(`title.${name}`), to: pages[name]()}));

const models = async text =>
  (await ask(`v1/repository/models${query({query: text})}`)).data.map(({name}) => ({text: name, to: pages.model(name)}));
const among = (entries, text) => entries.filter(entry => entry.text.toLowerCase().includes(text.toLowerCase()));

export function show(input) {
  render(html`<${Found} key=${Date.now()} input=${input} />`, found);
}

// Opens the first place with these letters: a screen, else a model.
export async function go(text) {
  const first = among(screens, text)[0] ?? (await models(text).catch(() => []))[0];
  if (first) location.assign(first.to);
}

function Found({input}) {
  const [text, setText] = useState(input.value);
  const [named, setNamed] = useState([]);
  const wanted = useSettled(text, 120);
  useEffect(() => {
    const typed = () => setText(input.value);
    input.addEventListener('input', typed);
    typed();
    return () => input.removeEventListener('input', typed);
  }, [input]);
  useEffect(() => { models(wanted).then(setNamed, () => setNamed([])); }, [wanted]);
  const entries = among([...screens, ...named.slice(0, 20)], text);
  return html`<ul class="plain">${entries.map(entry => html`<li key=${entry.to}><a href=${entry.to}>${entry.text}</a></li>`)}</ul>
    ${entries.length === 0 && html`<p class="hint">${t('go_to.nothing')}</p>`}`;
}

// The dialog "Go to": a screen or a model by a few letters.
import {html, render, useEffect, useState} from './view.js';
import {ask, query} from './api.js';
import {pages} from './addresses.js';
import {Dialog} from './parts.js';
import {useSettled} from './screen.js';
import {t} from './words.js';

const screens = ['models', 'playground', 'sessions', 'live', 'jobs'];
const home = document.createElement('div');
document.body.append(home);

export function open() {
  render(html`<${GoTo} onClose=${() => render(null, home)} />`, home);
}

function GoTo({onClose}) {
  const [text, setText] = useState('');
  const [models, setModels] = useState([]);
  const wanted = useSettled(text, 120);
  useEffect(() => {
    ask(`v1/repository/models${query({query: wanted})}`).then(found => setModels(found.data), () => setModels([]));
  }, [wanted]);
  const entries = [
    ...screens.map(name => ({text: t(`title.${name}`), to: pages[name]()})),
    ...models.slice(0, 20).map(model => ({text: model.name, to: pages.model(model.name)})),
  ].filter(entry => entry.text.toLowerCase().includes(text.toLowerCase()));
  const go = event => { event.preventDefault(); if (entries[0]) location.assign(entries[0].to); };
  return html`<${Dialog} title=${t('frame.go_to')} onClose=${onClose}>
    <form onSubmit=${go}>
      <label>${t('go_to.search')}<input type="search" autofocus value=${text} onInput=${event => setText(event.target.value)} /></label>
      <ul class="plain">${entries.map(entry => html`<li key=${entry.to}><a href=${entry.to}>${entry.text}</a></li>`)}</ul>
      ${entries.length === 0 && html`<p class="hint">${t('go_to.nothing')}</p>`}
    </form>
  <//>`;
}

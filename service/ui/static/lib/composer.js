// The box in which one writes a message. Enter sends it, in Korean too; Shift+Enter is a new line.
import {html, useEffect, useRef} from './view.js';
import {Enter, EVENTS} from './enter.js';
import {t} from './words.js';

// `onSend` gets the text as it stands in the box. `children` are further buttons.
export function Composer({text, onText, onSend, button, busy, onStop, children}) {
  const box = useRef();
  const send = useRef();
  send.current = () => {
    box.current.focus();
    if (!busy && box.current.value.trim()) onSend(box.current.value);
  };
  useEffect(() => {
    const enter = new Enter();
    const hear = event => {
      const meant = enter.on(event);
      if (meant) event.preventDefault();
      if (meant === 'send') send.current();
      if (meant === 'send-after') setTimeout(() => send.current());
    };
    EVENTS.forEach(type => box.current.addEventListener(type, hear));
  }, []);
  return html`<form class="composer" onSubmit=${event => { event.preventDefault(); send.current(); }}>
    <label>${t('chat.message')}<textarea ref=${box} rows="3" value=${text} onInput=${event => onText(event.target.value)}></textarea></label>
    <div class="row middle">
      <button class="main">${button}</button>
      <button type="button" disabled=${!busy} onClick=${() => { box.current.focus(); onStop(); }}>${t('chat.stop')}</button>
      ${children}
      <span class="hint">${t('chat.keys')}</span>
    </div>
  </form>`;
}

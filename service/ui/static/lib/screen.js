// The parts that every screen needs: its place in the address, its data, and the way onto the page.
import {html, render, useCallback, useEffect, useRef, useState} from './view.js';
import {ask} from './api.js';
import {fail, quiet} from './notice.js';

const content = document.getElementById('content');

// The parts of the address: model, version, alias, session.
export const places = {...content.dataset};
export const asked = new URLSearchParams(location.search);

export function mount(Screen) {
  render(html`<${Screen} />`, document.getElementById('screen'));
}

// Changes the heading and the title where only the data knows them.
export function rename(heading) {
  content.querySelector('h1').textContent = heading;
  document.title = `${heading} · Dosirak`;
}

// Keeps a value in the address, so that a reload and a link show the same.
export function keepAsked(name, value) {
  if (value) asked.set(name, value); else asked.delete(name);
  const text = asked.toString();
  history.replaceState(null, '', text ? `?${text}` : location.pathname);
}

// The answer of a GET: {data, busy, reload}. While `path` is null nothing is asked; `every` asks again after so many ms.
export function useAnswer(path, {every = 0} = {}) {
  const [state, set] = useState({data: undefined, busy: true});
  const reload = useCallback(async signal => {
    if (path === null) return;
    try {
      const data = await ask(path, {signal});
      set({data, busy: false});
    } catch (error) {
      if (error.name === 'AbortError') return;
      set(old => ({...old, busy: false, error}));
      fail(error);
    }
  }, [path]);
  useEffect(() => {
    const ending = new AbortController();
    set(old => ({...old, busy: true}));
    reload(ending.signal);
    const timer = every && setInterval(() => document.hidden || reload(ending.signal), every);
    return () => { ending.abort(); clearInterval(timer); };
  }, [reload, every]);
  return {...state, reload: () => { quiet(); return reload(); }};
}

// A value that follows another after the typing stops.
export function useSettled(value, milliseconds = 200) {
  const [settled, set] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => set(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}

// Makes handlers of buttons and forms that run one at a time: a second press changes nothing while the first one works.
export function useTurns() {
  const working = useRef(false);
  return work => async event => {
    event.preventDefault();
    if (working.current) return;
    working.current = true;
    await work().finally(() => { working.current = false; });
  };
}

// A stream of server-sent events that is open only while somebody can see the page, and is opened again after a failure,
// later each time. It knows no figures.
import {ApiError, events} from './api.js';

const LONGEST_WAIT = 30, SILENT = 15_000;

// Calls `onEvent(data)` for each event and `onState(state, {seconds, error})` when the state changes: 'opening', 'open' (the
// first event is here), 'waiting' (so many seconds until the next try), 'unseen'. Returns the function that ends it.
export function follow(path, onEvent, onState) {
  let ending = null, timer, failures = 0;
  const isSeen = () => !document.hidden && !document.prerendering;
  const close = () => { clearTimeout(timer); ending?.abort(); ending = null; };
  const look = () => {
    if (!isSeen()) { close(); onState('unseen', {}); } else if (!ending) open();
  };
  const failed = error => {
    close();
    const seconds = Math.min(LONGEST_WAIT, 2 ** failures++);
    onState('waiting', {seconds, error});
    timer = setTimeout(look, seconds * 1000);
  };
  async function open() {
    clearTimeout(timer);
    const {signal} = ending = new AbortController();
    const listen = () => { clearTimeout(timer); timer = setTimeout(() => failed(new Error('silent')), SILENT); };
    let isOpen = false;
    onState('opening', {});
    try {
      listen();
      for await (const data of events(path, {signal})) {
        if (signal.aborted) return;
        if (data.error) throw new ApiError(data.error, 500, data.request_id, data);
        listen();
        onEvent(data);
        if (!isOpen) onState('open', {});
        isOpen = true;
        failures = 0;
      }
      if (!signal.aborted) failed(new Error('ended'));
    } catch (error) {
      if (!signal.aborted) failed(error);
    }
  }
  const moments = [[document, 'visibilitychange'], [document, 'prerenderingchange'], [window, 'pageshow']];
  moments.forEach(([on, name]) => on.addEventListener(name, look));
  addEventListener('pagehide', close);
  look();
  return () => {
    moments.forEach(([on, name]) => on.removeEventListener(name, look));
    removeEventListener('pagehide', close);
    close();
  };
}

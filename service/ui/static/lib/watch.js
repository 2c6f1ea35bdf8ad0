// Figures that change by themselves are asked again and again, while somebody looks.
import {useEffect, useRef, useState} from './view.js';
import {fail, quiet} from './notice.js';

// What `read(signal)` returns, asked again so many ms after each answer and at once when the page is shown again; a hidden
// page asks nothing. `look()` asks now. While the server does not answer, one alert stands and the last answer stays.
export function useWatched(read, milliseconds) {
  const [data, setData] = useState();
  const turn = useRef(async () => {});
  useEffect(() => {
    const ending = new AbortController();
    let timer, newest = 0, failing = false;
    const once = async () => {
      const mine = ++newest;
      try {
        const found = await read(ending.signal);
        if (mine === newest) setData(found);
        if (failing) quiet();
        failing = false;
      } catch (error) {
        if (!failing) fail(error);
        failing = true;
      }
    };
    turn.current = async () => {
      if (!document.hidden) await once();
      clearTimeout(timer);
      if (!ending.signal.aborted) timer = setTimeout(turn.current, milliseconds);
    };
    const shown = () => document.hidden || turn.current();
    document.addEventListener('visibilitychange', shown);
    turn.current();
    return () => { ending.abort(); clearTimeout(timer); document.removeEventListener('visibilitychange', shown); };
  }, []);
  return {data, look: () => turn.current()};
}

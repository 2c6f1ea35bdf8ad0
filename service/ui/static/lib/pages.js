// A list that the API gives page by page: the rows so far, and how to get more.
import {useEffect, useRef, useState} from './view.js';
import {ask, query} from './api.js';
import {fail, quiet} from './notice.js';

// {rows, more, change}: `rows` is undefined until the first page is here, `more` is null on the last one. While `path` is
// null nothing is asked; another path, value or `round` asks for the first page again. Pages come by themselves until there
// are `ahead` rows.
export function usePages(path, values = {}, round = 0, ahead = 1) {
  const [state, set] = useState({rows: undefined, cursor: null});
  const ending = useRef();
  const load = async (cursor, signal) => {
    const found = await ask(`${path}${query({...values, cursor})}`, {signal});
    if (signal.aborted) return;
    set(old => cursor && cursor !== old.cursor ? old : {rows: cursor ? [...old.rows, ...found.data] : found.data, cursor: found.next_cursor}); // a page that was asked for twice comes once
  };
  const {rows, cursor} = state;
  useEffect(() => { if (cursor && rows.length < ahead) load(cursor, ending.current.signal).catch(fail); }, [cursor]);
  useEffect(() => {
    if (path === null) return undefined;
    const now = ending.current = new AbortController();
    load('', now.signal).then(quiet, fail);
    return () => now.abort();
  }, [path, JSON.stringify(values), round]);
  return {
    rows,
    more: cursor && (() => load(cursor, ending.current.signal)),
    change: work => set(old => ({...old, rows: work(old.rows)})),
  };
}

// The preview of the next call, asked while one types: an older question ends when a newer one comes.
import {useEffect, useState} from './view.js';
import {ask} from './api.js';
import {useSettled} from './screen.js';

// `body` is that of /generate, or null where nothing is to be asked. Returns {data} or {error}; null while none is known.
export function usePreview(body) {
  const key = body && JSON.stringify(body);
  const wanted = useSettled(key, 250);
  const [found, set] = useState({});
  useEffect(() => {
    if (!wanted) return undefined;
    const ending = new AbortController();
    ask('v1/context/preview', {method: 'POST', body: JSON.parse(wanted), signal: ending.signal}).then(
      data => set({key: wanted, data}),
      error => error.name === 'AbortError' || set({key: wanted, error}),
    );
    return () => ending.abort();
  }, [wanted]);
  return key && found.key === key ? found : null;
}

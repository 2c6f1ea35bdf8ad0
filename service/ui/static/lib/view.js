// The view library: Preact with htm's templates, so a script needs no build. It knows nothing of Dosirak.
import {h, render, Fragment} from '../vendor/preact.js';
import htm from '../vendor/htm.js';

export {render, Fragment};
export {useState, useEffect, useRef, useMemo, useCallback, useLayoutEffect, useId} from '../vendor/hooks.js';
export const html = htm.bind(h);

// One bar of parts that sum to a whole, as SVG; it stands beside a table of the same numbers.
import {html} from './view.js';
import {number} from './words.js';

const WIDTH = 560;

// A part is {name, value, kind}; `kind` is its class.
export function PartsBar({name, parts}) {
  const sum = parts.reduce((total, part) => total + part.value, 0) || 1;
  let at = 0;
  return html`<svg class="chart parts" role="img" aria-label=${name} viewBox="0 0 ${WIDTH} 30" preserveAspectRatio="none">
    ${parts.map(part => {
      const width = part.value / sum * WIDTH;
      at += width;
      return html`<rect key=${part.name} class=${part.kind} x=${at - width} y="1" width=${width} height="28" rx="3"><title>${part.name}: ${number(part.value)}</title></rect>`;
    })}
  </svg>`;
}

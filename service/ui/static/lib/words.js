// The strings of the page's language, and numbers and times as its readers write them.
export const language = document.documentElement.lang;
const strings = await (await fetch(new URL(`../strings/${language}.json`, import.meta.url))).json();

// The string of a key with values in its places, as in t('models.found', {count: 3}).
export function t(key, values = {}) {
  return (strings[key] ?? key).replace(/\{(\w+)\}/g, (place, name) => values[name] ?? place);
}
export const known = key => key in strings;

const whole = new Intl.NumberFormat(language, {maximumFractionDigits: 0});
const units = ['B', 'kB', 'MB', 'GB', 'TB'];

export const number = (value, digits) => digits === undefined
  ? (Number.isInteger(value) ? whole : new Intl.NumberFormat(language, {maximumSignificantDigits: 4})).format(value)
  : new Intl.NumberFormat(language, {minimumFractionDigits: digits, maximumFractionDigits: digits}).format(value);
export const percent = (share, digits = 1) =>
  new Intl.NumberFormat(language, {style: 'percent', minimumFractionDigits: digits, maximumFractionDigits: digits}).format(share);
export function bytes(value) {
  const power = Math.min(units.length - 1, value < 1000 ? 0 : Math.floor(Math.log10(value) / 3));
  return `${new Intl.NumberFormat(language, {maximumSignificantDigits: 3}).format(value / 1000 ** power)} ${units[power]}`;
}
const moment = new Intl.DateTimeFormat(language, {dateStyle: 'medium', timeStyle: 'medium'});
// A time in ISO 8601, or in seconds since 1970, in the reader's zone; '' for none.
export const time = at => at ? moment.format(typeof at === 'number' ? at * 1000 : new Date(at)) : '';
export const milliseconds = seconds => seconds === null || seconds === undefined ? '–'
  : `${new Intl.NumberFormat(language, {maximumSignificantDigits: 3}).format(seconds * 1000)} ms`;
const changes = new Intl.NumberFormat(language, {style: 'percent', maximumFractionDigits: 1, signDisplay: 'exceptZero'});
// A change in proportion, with its sign: "+3.2%".
export const change = share => changes.format(share);

// The figures of a report, one a line: the same list for the tables of a version, a comparison and the trend.
import {number, percent, t} from './words.js';

const decode = size => ({
  key: `speed.decode.${size}`, label: t('measure.decode', {size}), of: report => report.speed.decode_tokens_per_second[size],
  show: value => number(value), path: `speed.decode_tokens_per_second.${size}`,
});

export const QUALITY = [
  {key: 'perplexity', label: t('measure.perplexity'), of: report => report.perplexity, show: value => number(value, 4), path: 'perplexity'},
  {key: 'perplexity_change', label: t('measure.perplexity_change'), of: report => report.compared?.perplexity_change, show: value => percent(value, 2), path: 'compared.perplexity_change'},
  {key: 'top1_agreement', label: t('measure.top1_agreement'), of: report => report.compared?.top1_agreement, show: value => percent(value, 2), path: 'compared.top1_agreement'},
  {key: 'clear_top1_agreement', label: t('measure.clear_top1_agreement'), of: report => report.compared?.clear_top1_agreement, show: value => percent(value, 2), path: 'compared.clear_top1_agreement'},
  {key: 'greedy_agreement', label: t('measure.greedy_agreement'), of: report => report.compared?.greedy_agreement, show: value => percent(value, 2), path: 'compared.greedy_agreement'},
  {key: 'kl', label: t('measure.kl'), of: report => report.compared?.kl, show: value => number(value), path: 'compared.kl'},
  {key: 'recall', label: t('measure.recall'), of: report => share(report.recall), show: value => percent(value, 1), path: 'recall'},
];
export const SPEED = [
  ...['1', '8', '32'].map(decode),
  {key: 'prefill', label: t('measure.prefill'), of: report => report.speed.prefill_tokens_per_second, show: value => number(value)},
  {key: 'load', label: t('measure.load'), of: report => report.speed.load_seconds, show: value => `${number(value)} s`},
];

// The lines of a report that has a figure for them, with the text of the value and of its 95 % interval.
export function lines(figures, report) {
  if (!report) return [];
  return figures.map(figure => ({...figure, value: figure.of(report), interval: report.intervals?.[figure.path]}))
    .filter(line => line.value !== undefined && line.value !== null)
    .map(line => ({...line, text: line.show(line.value), range: line.interval && `${line.show(line.interval.low)} – ${line.show(line.interval.high)}`}));
}

// The versions with what compares of their reports: perplexity over the texts that all have, and figures against a parent
// where it is the same one. The first version with a report leads, or what production points to. A version that was
// measured on none of its texts is `apart` and has neither.
export function comparable(versions) {
  const measured = versions.filter(each => each.report);
  const lead = measured.find(each => each.aliases.includes('production')) ?? measured[0];
  if (!lead) return versions;
  let shared = new Set(keys(lead.report));
  const together = new Set([lead]);
  for (const each of measured) {
    const both = keys(each.report).filter(key => shared.has(key));
    if (each !== lead && both.length) {
      shared = new Set(both);
      together.add(each);
    }
  }
  const parents = new Set([...together].map(each => each.report.compared?.digest).filter(Boolean));
  return versions.map(each => each.report ? {...each, apart: !together.has(each), report: together.has(each) ? over(shared, each.report, parents) : alone(each.report)} : each);
}

// The texts of a report; of an earlier release's, the whole set.
const keys = ({texts}) => texts.parts.length ? texts.parts.map(part => part.sha256) : [texts.sha256];

const alone = report => ({...report, perplexity: null, compared: null});

function over(shared, report, parents) {
  const compared = parents.size > 1 ? null : report.compared;
  const parts = report.texts.parts.filter(part => shared.has(part.sha256));
  if (parts.length === report.texts.parts.length) return {...report, compared};
  const sum = key => parts.reduce((total, part) => total + part[key], 0);
  return {...report, compared, perplexity: Math.exp(sum('loss') / sum('tokens')), intervals: {...report.intervals, perplexity: undefined}};
}

// Of a fact that was never told, an answer without it is right.
const good = cell => cell.cell.startsWith('not told') ? cell.asked - cell.right : cell.right;

function share(recall) {
  const asked = recall.reduce((sum, each) => sum + each.asked, 0);
  return asked ? recall.reduce((sum, each) => sum + good(each), 0) / asked : undefined;
}
